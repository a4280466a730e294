//! The recommended stripe unit, from request sizes and the number in flight.
//!
//! Chen and Patterson 1990 ("Maximizing performance in a striped disk array") and Chen and Lee
//! 1995: with several requests in flight, a unit should be wide enough that a request stays on one
//! disk while the requests use several; with one at a time, narrow enough that each request uses
//! all disks.

use weir_model::{Op, SECTOR_BYTES};

use super::Conclusion;
use crate::evidence::{Confidence, Evidence};
use crate::metric::{Class, Metric};
use crate::profile::{Profile, Topic};

/// The number in flight that counts as several.
const SEVERAL: f64 = 1.5;

/// How rarely a request of the typical largest size may cross a unit boundary.
const CROSSING: i64 = 4;

/// Units that arrays support.
const UNIT_BYTES: std::ops::RangeInclusive<i64> = 16 << 10..=1 << 20;

/// Evaluates sizes and parallelism.
pub fn statement(profile: &Profile) -> Conclusion {
    // The length of discards and write-zeroes requests is ignored: no data is transferred.
    let of = |op| profile.histograms.of(Metric::Length, Class::Of(op));
    let mut lengths = of(Op::Read).clone();
    lengths.merge(of(Op::Write));
    let (Some(mean), Some(p95)) = (profile.sizes.all.mean_bytes, lengths.quantile(0.95)) else {
        return Conclusion::Unknown("there are no reads or writes".into());
    };
    let Some(parallelism) = &profile.parallelism else {
        let mut missing = profile.missing.iter();
        let unreliable = missing.find(|m| m.topic == Topic::QueueDepth);
        return Conclusion::Unknown(match unreliable {
            Some(why) => format!("the queue depth is unknown: {}", why.text),
            None => "the queue depth is unknown because the source has no responses".into(),
        });
    };
    let order = &profile.order.all;
    let sequential = order.sequential_share.unwrap_or_default();
    let evidence = vec![
        Evidence::new("length_mean_bytes", mean),
        Evidence::new("length_p95_bytes", p95 as f64),
        Evidence::new("in_flight_at_issue_mean", parallelism.at_issue_mean),
        Evidence::new("sequential_share", sequential),
        Evidence::new("interleaved_streams", f64::from(order.interleaved_streams)),
        Evidence::new("requests", profile.requests as f64),
    ];
    let carried = Confidence::of_requests(profile.requests).unwrap_or(Confidence::Low);
    if parallelism.at_issue_mean >= SEVERAL {
        let wanted = (CROSSING * p95.max(SECTOR_BYTES)) as u64;
        let unit =
            (wanted.next_power_of_two() as i64).clamp(*UNIT_BYTES.start(), *UNIT_BYTES.end());
        let text = format!(
            "a stripe unit of {} KiB or more: the mean queue depth is {:.1}, and of requests \
             with the 95th percentile of the length ({:.0} KiB) at most one in {:.0} then spans \
             two disks",
            unit >> 10,
            parallelism.at_issue_mean,
            p95 as f64 / 1024.0,
            (unit as f64 / p95 as f64).max(1.0),
        );
        return Conclusion::Do(text, carried, evidence);
    }
    if sequential >= 0.7 && mean >= 2.0 * *UNIT_BYTES.start() as f64 {
        let text = format!(
            "a stripe unit of at most {:.0} KiB divided by the number of disks: requests arrive \
             one at a time, and are faster if each uses all disks",
            mean / 1024.0
        );
        return Conclusion::Do(text, carried.min(Confidence::Moderate), evidence);
    }
    // With one small request at a time, more disks have no benefit, however they are striped.
    Conclusion::Nothing
}
