//! How wide a stripe unit should be, from the sizes of the requests and how many are in flight.
//!
//! Chen and Patterson 1990 ("Maximizing performance in a striped disk array") and Chen and Lee 1995: where
//! several requests are in flight, a unit should be so wide that a request keeps to one disk, and the
//! requests use several disks; where there is one at a time, so narrow that each request uses all disks.

use weir_model::{Op, SECTOR_BYTES};

use super::Conclusion;
use crate::evidence::{Confidence, Evidence};
use crate::metric::{Class, Metric};
use crate::profile::{Profile, Topic};

/// So many in flight count as several.
const SEVERAL: f64 = 1.5;

/// A request of the usual greatest length crosses the border of a unit once in so many times.
const CROSSING: i64 = 4;

/// Units that arrays know.
const UNIT_BYTES: std::ops::RangeInclusive<i64> = 16 << 10..=1 << 20;

/// What sizes and parallelism say.
pub fn says(profile: &Profile) -> Conclusion {
    // Discards and written zeroes are as long as they like: no data moves.
    let of = |op| profile.histograms.of(Metric::Length, Class::Of(op));
    let mut lengths = of(Op::Read).clone();
    lengths.merge(of(Op::Write));
    let (Some(mean), Some(p95)) = (profile.sizes.all.mean_bytes, lengths.quantile(0.95)) else {
        return Conclusion::Untold("it takes reads or writes".into());
    };
    let Some(parallelism) = &profile.parallelism else {
        let mut missing = profile.missing.iter();
        let unreliable = missing.find(|m| m.topic == Topic::QueueDepth);
        return Conclusion::Untold(match unreliable {
            Some(why) => format!("how many requests are in flight is not known: {}", why.text),
            None => "how many requests are in flight is not known, as the source has no responses"
                .into(),
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
            "a stripe unit of {} KiB or more: {:.1} requests are in flight together, and of those of the usual greatest length ({:.0} KiB) no more than one in {:.0} then takes two disks",
            unit >> 10,
            parallelism.at_issue_mean,
            p95 as f64 / 1024.0,
            (unit as f64 / p95 as f64).max(1.0),
        );
        return Conclusion::Do(text, carried, evidence);
    }
    if sequential >= 0.7 && mean >= 2.0 * *UNIT_BYTES.start() as f64 {
        let text = format!(
            "a stripe unit no wider than {:.0} KiB over the number of disks: requests come one at a time, so they gain when each uses all disks",
            mean / 1024.0
        );
        return Conclusion::Do(text, carried.min(Confidence::Moderate), evidence);
    }
    // One small request at a time gains nothing from more disks, however they are striped.
    Conclusion::Nothing
}
