//! Flash or disk: from the rate of random requests and the throughput of sequential ones.
//!
//! A random request on a disk takes a seek and half a rotation: 8.5 ms and 4.2 ms at 7,200
//! rotations a minute, so about 80 a second, and twice as many with a deep queue or faster
//! rotation. Sequential requests are as fast as on flash. Random writes wear flash (Ouarnoughi
//! 2014, section IV.B).

use weir_model::NANOS_PER_SECOND;

use super::Conclusion;
use crate::analysis::arrivals::Source;
use crate::evidence::{Confidence, Evidence};
use crate::profile::Profile;

/// Random requests per second of a disk.
const DISK_RANDOM_PER_S: f64 = 100.0;

/// Sequential bytes per second of a disk.
const DISK_BYTES_PER_S: f64 = 150e6;

/// The shortest observation for a rate: ten seconds, with a margin for the first and last request.
/// The rate of the busiest second takes 16 of them.
const SPAN_NS_MIN: i64 = 10 * NANOS_PER_SECOND - NANOS_PER_SECOND / 2;

/// The threshold for many random writes.
const RANDOM_WRITES_SHARE: f64 = 0.3;

/// Evaluates rate and order.
pub fn statement(profile: &Profile) -> Conclusion {
    let span = profile.span_ns as f64 / NANOS_PER_SECOND as f64;
    let order = &profile.order.all;
    let (Some(sequential), Some(rate)) = (order.sequential_share, profile.arrivals.rate_mean_per_s)
    else {
        return Conclusion::Unknown("there are no reads or writes".into());
    };
    if profile.span_ns < SPAN_NS_MIN {
        return Conclusion::Unknown(format!(
            "the rate needs 10 s of observation, not {span:.1} s"
        ));
    }
    let scattered = 1.0 - sequential;
    // The rate includes all requests; flushes have no address.
    let placed = order.requests as f64 / profile.requests.max(1) as f64;
    let random = rate * placed * scattered;
    let random_peak = profile.bursts.peak_to_mean_1s.map(|peak| peak * random);
    let moved = (profile.mix.read_bytes + profile.mix.written_bytes) as f64 / span;
    let evidence = evidence(profile, [random, scattered, moved], random_peak);
    let carried = Confidence::of_requests(order.requests).unwrap_or(Confidence::Low);
    // The rate of a closed source depends on the latency.
    let carried = match profile.arrivals.source {
        Some(Source::Closed) => carried.min(Confidence::Moderate),
        _ => carried,
    };
    if random >= 2.0 * DISK_RANDOM_PER_S {
        let disks = (random / DISK_RANDOM_PER_S).ceil();
        let text = format!(
            "flash: {random:.0} non-sequential requests per second would need {disks:.0} hard \
             disks{}",
            wear(profile)
        );
        return Conclusion::Do(text, carried, evidence);
    }
    let Some(random_peak) = random_peak else {
        return Conclusion::Unknown(format!(
            "the peak rate needs 17 s of observation, not {span:.1} s"
        ));
    };
    if random_peak <= DISK_RANDOM_PER_S && moved <= DISK_BYTES_PER_S {
        let text = format!(
            "one hard disk suffices: {random_peak:.0} non-sequential requests in the busiest \
             second, mean throughput {:.1} MB/s{}",
            moved / 1e6,
            waits(profile, scattered)
        );
        return Conclusion::Do(text, carried.min(Confidence::Moderate), evidence);
    }
    Conclusion::Unknown(format!(
        "it depends on the acceptable latency of bursts: {random:.0} non-sequential requests per \
         second on average, {random_peak:.0} in the busiest second"
    ))
}

/// The write load on flash.
fn wear(profile: &Profile) -> String {
    let writes = 1.0 - profile.mix.read_share.unwrap_or(1.0);
    let scattered = 1.0 - profile.order.writes.sequential_share.unwrap_or(1.0);
    match writes * scattered {
        share if share >= RANDOM_WRITES_SHARE => format!(
            "; {:.0} % of the requests are non-sequential writes, so choose flash with high \
             write endurance",
            100.0 * share
        ),
        _ => String::new(),
    }
}

/// The expected latency on a disk.
fn waits(profile: &Profile, scattered: f64) -> String {
    let now = profile
        .load
        .as_ref()
        .map(|load| load.all.p50_ns as f64 / 1e6);
    match now {
        Some(ms) if ms < 2.0 && scattered >= 0.5 => {
            format!("; but the median latency is {ms:.1} ms now, and a hard disk takes about 10 ms")
        }
        _ => String::new(),
    }
}

fn evidence(
    profile: &Profile,
    [random, scattered, moved]: [f64; 3],
    peak: Option<f64>,
) -> Vec<Evidence> {
    let mut evidence = vec![
        Evidence::new("not_sequential_per_s", random),
        Evidence::new("not_sequential_share", scattered),
        Evidence::new("moved_bytes_per_s", moved),
        Evidence::new("requests", profile.requests as f64),
        Evidence::new("span_ns", profile.span_ns as f64),
    ];
    evidence.extend(peak.map(|peak| Evidence::new("not_sequential_peak_per_s", peak)));
    let writes = profile.mix.read_share.map(|share| 1.0 - share);
    evidence.extend(writes.map(|share| Evidence::new("write_share", share)));
    evidence
}
