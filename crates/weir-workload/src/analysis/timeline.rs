//! [`Timeline`]: activity by time, in intervals that grow so that their number stays bounded.
//!
//! Intervals start at 1 ms and double as needed.

use serde::Serialize;
use weir_model::{Nanos, Op, SECTOR_BYTES};

use crate::intervals::Intervals;
use crate::track::Step;

/// The largest number of intervals from first to last.
pub const INTERVALS_MAX: i64 = 1_024;

/// The shortest interval.
const INTERVAL_NS_MIN: Nanos = 1_000_000;

/// Activity by time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// The length of an interval.
    pub interval_ns: Nanos,
    /// The intervals with activity, in order.
    pub intervals: Vec<Interval>,
}

/// The activity of an interval. Requests are counted at their issue, latencies at their completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// Its start.
    pub ts_ns: Nanos,
    /// Reads issued.
    pub reads: u64,
    /// Writes issued.
    pub writes: u64,
    /// Requests of other kinds issued.
    pub others: u64,
    /// Bytes to be read.
    pub read_bytes: u64,
    /// Bytes to be written.
    pub written_bytes: u64,
    /// Requests finished whose latency is known.
    pub timed: u64,
    /// Sum over those of the requests in flight when they were issued, themselves included; `None`
    /// where that is not reliable.
    pub in_flight_sum: Option<u64>,
    /// Sum of their latencies.
    pub latency_sum_ns: i64,
    /// The greatest.
    pub latency_max_ns: Nanos,
}

/// Accumulates steps.
#[derive(Clone, Debug)]
pub struct TimeTally(Intervals<Interval>);

impl Default for TimeTally {
    fn default() -> TimeTally {
        TimeTally(Intervals::new(
            INTERVAL_NS_MIN,
            INTERVALS_MAX,
            Interval::merge,
        ))
    }
}

impl TimeTally {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        match step {
            Step::Issued(issue) => {
                let request = &issue.request;
                let bytes = request.sectors.saturating_mul(SECTOR_BYTES).max(0) as u64;
                let interval = self.0.at(request.ts);
                match request.op {
                    Op::Read => {
                        interval.reads += 1;
                        interval.read_bytes += bytes;
                    }
                    Op::Write => {
                        interval.writes += 1;
                        interval.written_bytes += bytes;
                    }
                    _ => interval.others += 1,
                }
            }
            Step::Finished(end) => {
                let Some(latency) = end.response.total_ns() else {
                    return;
                };
                let interval = self.0.at(end.response.ts);
                interval.timed += 1;
                let in_flight = end.issue.as_ref().map_or(0, |issue| issue.in_flight);
                let sum = interval.in_flight_sum.get_or_insert(0);
                *sum += in_flight.max(0) as u64;
                interval.latency_sum_ns = interval.latency_sum_ns.saturating_add(latency);
                interval.latency_max_ns = interval.latency_max_ns.max(latency);
            }
            Step::Lost { .. } => {}
        }
    }

    /// The result.
    pub fn result(&self) -> Timeline {
        let intervals = self.0.iter();
        Timeline {
            interval_ns: self.0.interval_ns(),
            intervals: intervals
                .map(|(ts_ns, interval)| Interval { ts_ns, ..*interval })
                .collect(),
        }
    }
}

impl Timeline {
    /// The same in intervals `times` as long.
    pub fn lengthened(&self, times: i64) -> Timeline {
        let interval_ns = self.interval_ns.saturating_mul(times);
        let mut intervals: Vec<Interval> = Vec::new();
        for part in &self.intervals {
            let ts_ns = part.ts_ns.div_euclid(interval_ns) * interval_ns;
            match intervals.last_mut() {
                Some(last) if last.ts_ns == ts_ns => last.merge(part),
                _ => intervals.push(Interval { ts_ns, ..*part }),
            }
        }
        Timeline {
            interval_ns,
            intervals,
        }
    }
}

impl Interval {
    /// Requests issued.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.others
    }

    /// Mean latency of those that finished.
    pub fn latency_mean_ns(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.latency_sum_ns as f64 / self.timed as f64)
    }

    fn merge(&mut self, other: &Interval) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        if let Some(more) = other.in_flight_sum {
            *self.in_flight_sum.get_or_insert(0) += more;
        }
        self.timed += other.timed;
        self.latency_sum_ns = self.latency_sum_ns.saturating_add(other.latency_sum_ns);
        self.latency_max_ns = self.latency_max_ns.max(other.latency_max_ns);
    }
}
