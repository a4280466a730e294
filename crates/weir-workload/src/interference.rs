//! [`Interference`]: which subject's latency and throughput change when another one on the same
//! device is active, as section 5.3 and figure 6 of Ahmad 2007 show it for two VMs.
//!
//! The timelines of two subjects on one device are compared. The victim's mean latency in intervals
//! in which the other is active is compared with that in intervals in which it is idle, by the
//! rank-sum test of Mann and Whitney (1947), which assumes no distribution. If other subjects share
//! the device, intervals in which they are idle are used if there are enough: only then can one be
//! identified. Successive intervals are not independent, so the significance is overestimated; the
//! number of the other's transitions between active and idle is part of the confidence.

use serde::Serialize;
use weir_model::Nanos;

use crate::analysis::timeline::{Interval, Timeline};
use crate::devices::whole_disk;
use crate::evidence::{Confidence, Evidence};
use crate::profile::{Missing, Profile, SubjectName, Topic};
use crate::ranks::{median, rank_sum_z};

/// The smallest number of intervals with and without the other.
pub(crate) const INTERVALS_MIN: usize = 5;

/// The mean number of completed requests of the victim per interval, so that the interval's mean is
/// meaningful.
const TIMED_MEAN: f64 = 10.0;

/// Intervals are not lengthened below this number.
const INTERVALS_WANTED: usize = 64;

/// The number of subjects per device that are compared, the busiest.
const SUBJECTS_MAX: usize = 16;

/// The smallest reported change of the latency.
pub(crate) const RATIO_MIN: f64 = 1.2;

/// Standard deviations that chance exceeds in 1 of 100, 1,000 and 10,000 cases.
pub(crate) const Z: [f64; 3] = [2.33, 3.09, 3.72];

/// One subject disturbs another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interference {
    /// The affected subject.
    pub victim: SubjectName,
    /// The disturbing subject.
    pub disturber: SubjectName,
    /// The victim's median latency while the other is active, divided by that while it is idle:
    /// medians of interval means.
    pub latency_ratio: f64,
    /// The same for its requests per second.
    pub throughput_ratio: f64,
    /// The confidence.
    pub confidence: Confidence,
    /// The evidence.
    pub evidence: Vec<Evidence>,
}

/// How a timeline changes while another one is active.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Effect {
    /// As in [`Interference`].
    pub latency_ratio: f64,
    /// As in [`Interference`].
    pub throughput_ratio: f64,
    /// The confidence.
    pub confidence: Confidence,
    /// The evidence.
    pub evidence: Vec<Evidence>,
}

/// The result for all subjects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The disturbances, the strongest first.
    pub interference: Vec<Interference>,
    /// The number of pairs (victim and other) with sufficient data.
    pub pairs_tested: u64,
    /// Why others could not be assessed.
    pub missing: Vec<Missing>,
}

/// Evaluates all pairs that share a device.
pub fn find(profiles: &[Profile]) -> Found {
    let mut found = Found::default();
    let mut not_compared = 0;
    for victim in profiles {
        let others: Vec<&Profile> = profiles
            .iter()
            .filter(|other| !std::ptr::eq(*other, victim) && share_device(victim, other))
            .take(SUBJECTS_MAX)
            .collect();
        for disturber in &others {
            let rest = others.iter().filter(|o| !std::ptr::eq(**o, *disturber));
            let rest: Vec<&Timeline> = rest.map(|o| &o.timeline).collect();
            let compared = victim.load.as_ref();
            let compared =
                compared.and_then(|_| effect(&victim.timeline, &disturber.timeline, &rest));
            let Some(effect) = compared else {
                not_compared += 1;
                continue;
            };
            found.pairs_tested += 1;
            found.interference.extend(effect.map(|effect| Interference {
                victim: victim.subject.clone(),
                disturber: disturber.subject.clone(),
                latency_ratio: effect.latency_ratio,
                throughput_ratio: effect.throughput_ratio,
                confidence: effect.confidence,
                evidence: effect.evidence,
            }));
        }
    }
    let strength = |i: &Interference| (i.confidence, i.latency_ratio);
    found.interference.sort_by(|a, b| {
        strength(b)
            .partial_cmp(&strength(a))
            .expect("ratios are finite")
    });
    if found.pairs_tested == 0 {
        let text = match not_compared {
            0 => "no two disks share a device".to_owned(),
            _ => format!(
                "disks share a device, but the test needs latencies, and {INTERVALS_MIN} \
                 intervals with and without I/O of the other"
            ),
        };
        let topic = Topic::Interference;
        found.missing.push(Missing { topic, text });
    }
    found
}

/// The effect of a disturber on a victim, if there is one, while others on their device are idle if
/// possible. `None` where there are too few intervals with or without the disturber.
pub(crate) fn effect(
    victim: &Timeline,
    disturber: &Timeline,
    others: &[&Timeline],
) -> Option<Option<Effect>> {
    Comparison::of(victim, disturber, others).map(|comparison| comparison.judged())
}

/// The victim's intervals with and without the other.
struct Comparison {
    with: Vec<Interval>,
    without: Vec<Interval>,
    interval_ns: Nanos,
    /// The number of the other's transitions between active and idle.
    switches: u64,
    /// Others on the device were idle in all these intervals.
    alone: bool,
}

impl Comparison {
    /// `None` where there are too few intervals of either kind.
    fn of(victim: &Timeline, disturber: &Timeline, others: &[&Timeline]) -> Option<Comparison> {
        let lines: Vec<&Timeline> = [victim, disturber]
            .into_iter()
            .chain(others.iter().copied())
            .collect();
        let lines = side_by_side(&lines);
        let active: Vec<Activity> = lines[1..].iter().map(Activity::of).collect();
        let compared = |alone: bool| {
            let mut comparison = Comparison {
                with: Vec::new(),
                without: Vec::new(),
                interval_ns: lines[0].interval_ns,
                switches: 0,
                alone,
            };
            let mut before = None;
            for interval in inner(&lines[0].intervals) {
                let idle = |a: &Activity| a.at(interval.ts_ns) == Some(false);
                if interval.timed == 0 || alone && !active[1..].iter().all(idle) {
                    continue;
                }
                let Some(is_active) = active[0].at(interval.ts_ns) else {
                    continue;
                };
                comparison.switches += u64::from(before.replace(is_active) == Some(!is_active));
                match is_active {
                    true => comparison.with.push(*interval),
                    false => comparison.without.push(*interval),
                }
            }
            let least = comparison.with.len().min(comparison.without.len());
            (least >= INTERVALS_MIN).then_some(comparison)
        };
        compared(true).or_else(|| compared(false))
    }

    /// The disturbance, if there is one.
    fn judged(&self) -> Option<Effect> {
        let of = |intervals: &[Interval], value: fn(&Interval) -> f64| -> Vec<f64> {
            intervals.iter().map(value).collect()
        };
        let latency = |i: &Interval| i.latency_mean_ns().unwrap_or_default();
        let rate = |i: &Interval| i.requests() as f64;
        let length =
            |i: &Interval| (i.read_bytes + i.written_bytes) as f64 / (i.requests().max(1)) as f64;
        let (slow, usual) = (of(&self.with, latency), of(&self.without, latency));
        let ratio = |value: fn(&Interval) -> f64| {
            let [with, without] = [&self.with, &self.without].map(|i| median(&of(i, value)));
            (without > 0.0).then(|| with / without)
        };
        let latency_ratio = ratio(latency)?;
        let z = rank_sum_z(&slow, &usual);
        if latency_ratio < RATIO_MIN || z < Z[0] || self.switches == 0 {
            return None;
        }
        let throughput_ratio = ratio(rate)?;
        // A subject whose own requests change has another latency without interference.
        let length_ratio = ratio(length).unwrap_or(1.0);
        let changed = !(2.0 / 3.0..=1.5).contains(&length_ratio);
        let per_s = 1e9 / self.interval_ns as f64;
        Some(Effect {
            latency_ratio,
            throughput_ratio,
            confidence: self.confidence(z, changed),
            evidence: vec![
                Evidence::new("latency_with_ns", median(&slow)),
                Evidence::new("latency_without_ns", median(&usual)),
                Evidence::new("rate_with_per_s", median(&of(&self.with, rate)) * per_s),
                Evidence::new(
                    "rate_without_per_s",
                    median(&of(&self.without, rate)) * per_s,
                ),
                Evidence::new("intervals_with", slow.len() as f64),
                Evidence::new("intervals_without", usual.len() as f64),
                Evidence::new("interval_ns", self.interval_ns as f64),
                Evidence::new("transitions", self.switches as f64),
                Evidence::new("rank_sum_z", z),
                Evidence::new("request_length_ratio", length_ratio),
                Evidence::new("others_idle", f64::from(u8::from(self.alone))),
            ],
        })
    }

    fn confidence(&self, z: f64, changed: bool) -> Confidence {
        let least = self.with.len().min(self.without.len());
        match () {
            () if changed || !self.alone => Confidence::Low,
            () if z >= Z[2] && self.switches >= 3 && least >= 15 => Confidence::High,
            () if z >= Z[1] && (self.switches >= 2 || least >= 10) => Confidence::Moderate,
            () => Confidence::Low,
        }
    }
}

/// All timelines in intervals of the same length, long enough for meaningful means.
fn side_by_side(lines: &[&Timeline]) -> Vec<Timeline> {
    let longest = lines.iter().map(|l| l.interval_ns).max().unwrap_or(1);
    let lengthened = |to: Nanos| -> Vec<Timeline> {
        lines
            .iter()
            .map(|l| l.lengthened(to / l.interval_ns))
            .collect()
    };
    let mut length = longest;
    let mut all = lengthened(length);
    while all[0].intervals.len() > INTERVALS_WANTED {
        let timed: u64 = all[0].intervals.iter().map(|i| i.timed).sum();
        if timed as f64 >= TIMED_MEAN * all[0].intervals.len() as f64 {
            break;
        }
        length *= 2;
        all = lengthened(length);
    }
    all
}

/// All but the first and last intervals, which may be incomplete.
fn inner(intervals: &[Interval]) -> &[Interval] {
    match intervals {
        [_, inner @ .., _] => inner,
        _ => &[],
    }
}

/// The activity of a subject.
struct Activity<'a> {
    line: &'a Timeline,
    /// The number of requests per interval from which on it is active.
    least: f64,
}

impl Activity<'_> {
    fn of(line: &Timeline) -> Activity<'_> {
        let all: u64 = line.intervals.iter().map(Interval::requests).sum();
        Activity {
            line,
            least: 0.1 * all as f64 / line.intervals.len().max(1) as f64,
        }
    }

    /// Whether it is active at that time; `None` at low activity.
    fn at(&self, ts_ns: Nanos) -> Option<bool> {
        let found = self
            .line
            .intervals
            .binary_search_by_key(&ts_ns, |i| i.ts_ns);
        let requests = found.map_or(0, |at| self.line.intervals[at].requests());
        match requests {
            0 => Some(false),
            n if n as f64 >= self.least => Some(true),
            _ => None,
        }
    }
}

/// Whether two subjects are on one device, which partitions are too.
fn share_device(a: &Profile, b: &Profile) -> bool {
    match (a.subject.pdisk, b.subject.pdisk) {
        (Some(a), Some(b)) => whole_disk(a) == whole_disk(b),
        _ => false,
    }
}
