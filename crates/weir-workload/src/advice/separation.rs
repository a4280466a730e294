//! Workloads that should be on separate disk groups: interleaved sequential streams, and a log next
//! to random requests (Ahmad 2007, sections 3.1 and 3.6).

use super::Conclusion;
use crate::evidence::{Confidence, Evidence, REQUESTS_MIN};
use crate::profile::Profile;
use crate::verdict::Pattern;

/// The smallest sequential share that justifies separate disks.
const SEQUENTIAL_SHARE: f64 = 0.3;

/// Evaluates the order.
pub fn statement(profile: &Profile) -> Conclusion {
    let Some(confidence) = Confidence::of_requests(profile.order.all.requests) else {
        return Conclusion::Nothing;
    };
    let order = &profile.order;
    let (sequential, random) = (order.all.sequential_share, order.all.random_share);
    let streams = order.all.interleaved_streams;
    let mut evidence = vec![Evidence::new("requests", order.all.requests as f64)];
    let mut add = |name, value: Option<f64>| {
        evidence.extend(value.map(|value| Evidence::new(name, value)));
    };
    let pattern = profile.verdict.as_ref().map(|v| v.pattern);
    if pattern == Some(Pattern::LogStructured) {
        add("write_sequential_share", order.writes.sequential_share);
        add("read_random_share", order.reads.random_share);
        let text = "writes are appended to a log while reads are random: on hard disks, place \
                    the log on separate disks to avoid seeks";
        return Conclusion::Do(text.into(), confidence, evidence);
    }
    add("sequential_share", sequential);
    add("random_share", random);
    add("interleaved_streams", Some(f64::from(streams)));
    if streams >= 2 && sequential >= Some(SEQUENTIAL_SHARE) {
        add("run_requests_mean", order.all.run_requests_mean);
        let text = format!(
            "{streams} sequential streams alternate: on hard disks, place each on separate disks \
             or increase read-ahead, because each change of stream costs a seek"
        );
        return Conclusion::Do(text, confidence, evidence);
    }
    let mixed = sequential >= Some(SEQUENTIAL_SHARE) && random >= Some(SEQUENTIAL_SHARE);
    if mixed && order.all.requests >= 10 * REQUESTS_MIN {
        let text = "sequential and random requests are mixed: on hard disks, place the \
                    sequential data on separate disks to avoid seeks";
        return Conclusion::Do(text.into(), confidence.min(Confidence::Moderate), evidence);
    }
    Conclusion::Nothing
}
