//! [`Load`]: latency by load: by the requests in flight at the issue, and by the rate of an
//! interval.

use std::collections::BTreeMap;

use serde::Serialize;
use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_sketch::LogBins;

use super::timeline::Timeline;
use crate::track::Step;

/// Numbers in flight by powers of two, the last for all larger ones.
const DEPTHS: usize = 18;

/// Latency against load. The latency is from insertion to completion where that is known, else from
/// issue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// All requests.
    pub all: Latency,
    /// Reads.
    pub reads: Option<Latency>,
    /// Writes.
    pub writes: Option<Latency>,
    /// By the number in flight at the issue, itself included: 1, 2, 3-4, 5-8, ...
    pub by_depth: Vec<ByDepth>,
    /// By the rate of the interval in which they finished, rates within a power of two together.
    pub by_rate: Vec<ByRate>,
}

/// The latency of requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The number of requests.
    pub requests: u64,
    /// The mean.
    pub mean_ns: f64,
    /// The median; quantiles are within 1/32.
    pub p50_ns: Nanos,
    /// The 95 % quantile.
    pub p95_ns: Nanos,
    /// The 99 % quantile.
    pub p99_ns: Nanos,
    /// The largest latency.
    pub max_ns: Nanos,
}

/// Latency of the requests that were issued with this number in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ByDepth {
    /// The smallest number, itself included.
    pub in_flight_min: i64,
    /// The largest number.
    pub in_flight_max: i64,
    /// Their latency.
    pub latency: Latency,
}

/// Latency in intervals with a similar rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ByRate {
    /// The lower bound of the rate, in completed requests per second.
    pub rate_min_per_s: f64,
    /// The upper bound, exclusive.
    pub rate_max_per_s: f64,
    /// Intervals.
    pub intervals: u64,
    /// Requests completed in them.
    pub requests: u64,
    /// The mean latency of those.
    pub latency_mean_ns: f64,
}

/// Collects requests.
#[derive(Clone, Debug)]
pub struct LoadTally {
    all: Times,
    reads: Times,
    writes: Times,
    by_depth: Vec<Times>,
}

#[derive(Clone, Debug, Default)]
struct Times {
    count: u64,
    sum: i128,
    max: Nanos,
    bins: LogBins,
}

impl Default for LoadTally {
    fn default() -> LoadTally {
        LoadTally {
            all: Times::default(),
            reads: Times::default(),
            writes: Times::default(),
            by_depth: vec![Times::default(); DEPTHS],
        }
    }
}

impl LoadTally {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        let Step::Finished(end) = step else { return };
        let Some(latency) = end.response.total_ns() else {
            return;
        };
        let bin = LogBins::bin(latency);
        self.all.add(latency, bin);
        match end.response.op {
            weir_model::Op::Read => self.reads.add(latency, bin),
            weir_model::Op::Write => self.writes.add(latency, bin),
            _ => {}
        }
        if let Some(issue) = &end.issue {
            let depth = issue.in_flight.max(1) as u64;
            let power = depth.next_power_of_two().trailing_zeros() as usize;
            self.by_depth[power.min(DEPTHS - 1)].add(latency, bin);
        }
    }

    /// The result, with the rates of `timeline`; `None` without latencies.
    pub fn result(&self, timeline: &Timeline) -> Option<Load> {
        let depths = self.by_depth.iter().enumerate();
        let by_depth = depths.filter_map(|(power, times)| {
            Some(ByDepth {
                in_flight_min: if power == 0 {
                    1
                } else {
                    (1 << (power - 1)) + 1
                },
                in_flight_max: 1 << power,
                latency: times.result()?,
            })
        });
        Some(Load {
            all: self.all.result()?,
            reads: self.reads.result(),
            writes: self.writes.result(),
            by_depth: by_depth.collect(),
            by_rate: by_rate(timeline),
        })
    }
}

impl Times {
    /// Adds a time, with its number in [`LogBins`].
    fn add(&mut self, time: Nanos, bin: i32) {
        self.count += 1;
        self.sum += i128::from(time);
        self.max = self.max.max(time);
        self.bins.add_to_bin(bin, 1);
    }

    fn result(&self) -> Option<Latency> {
        let quantile = |q| Some(self.bins.quantile(q)?.min(self.max));
        Some(Latency {
            requests: self.count,
            mean_ns: self.sum as f64 / self.count as f64,
            p50_ns: quantile(0.5)?,
            p95_ns: quantile(0.95)?,
            p99_ns: quantile(0.99)?,
            max_ns: self.max,
        })
    }
}

fn by_rate(timeline: &Timeline) -> Vec<ByRate> {
    let per_s = NANOS_PER_SECOND as f64 / timeline.interval_ns as f64;
    let mut rates: BTreeMap<i32, ByRate> = BTreeMap::new();
    for interval in timeline.intervals.iter().filter(|i| i.timed > 0) {
        let power = (interval.timed as f64 * per_s).log2().floor() as i32;
        let rate = rates.entry(power).or_insert(ByRate {
            rate_min_per_s: 2f64.powi(power),
            rate_max_per_s: 2f64.powi(power + 1),
            intervals: 0,
            requests: 0,
            latency_mean_ns: 0.0,
        });
        rate.intervals += 1;
        rate.requests += interval.timed;
        // The sum first; divided by the count at the end.
        rate.latency_mean_ns += interval.latency_sum_ns as f64;
    }
    for rate in rates.values_mut() {
        rate.latency_mean_ns /= rate.requests as f64;
    }
    rates.into_values().collect()
}
