//! [`Parallelism`]: the number of requests in flight.

use serde::Serialize;
use weir_model::Nanos;

use crate::little::is_reliable;
use crate::track::Step;

/// Numbers in flight with separate counts; larger ones count as the last.
const DEPTHS: usize = 257;

/// The requests in flight, for requests with a known end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parallelism {
    /// Requests counted at their issue.
    pub requests: u64,
    /// The mean number in flight at an issue, itself included.
    pub at_issue_mean: f64,
    /// Coefficient of variation of the same.
    pub at_issue_cv: f64,
    /// The largest number in flight at an issue.
    pub at_issue_max: i64,
    /// The number in flight that was most frequent at an issue; 257 stands for more than 256.
    pub modal: i64,
    /// Issues at which the number in flight was that or one beside it, from 0 to 1.
    pub modal_share: f64,
    /// The mean number in flight over time, including idle times.
    pub in_flight_mean: f64,
    /// The share of time with requests in flight, from 0 to 1.
    pub busy_share: f64,
    /// The sum of the times in flight over the integral of the number in flight: 1 where all
    /// requests and their ends were received, see [`Little`](crate::little::Little).
    pub little_ratio: Option<f64>,
}

impl Parallelism {
    /// Whether the numbers in flight are reliable: few issues and ends are missing.
    pub fn is_reliable(&self) -> bool {
        self.little_ratio.is_some_and(is_reliable)
    }
}

/// Collects requests.
#[derive(Clone, Debug)]
pub struct ParallelismTally {
    issues: u64,
    sum: f64,
    squares: f64,
    max: i64,
    at_issue: [u64; DEPTHS],
    first: Option<Nanos>,
    last: Option<Nanos>,
    in_flight: i64,
    /// Integral over time of the number in flight, and of whether it was above 0.
    area_ns: f64,
    busy_ns: f64,
    /// Requests whose time in flight is known.
    timed: u64,
}

impl Default for ParallelismTally {
    fn default() -> ParallelismTally {
        ParallelismTally {
            issues: 0,
            sum: 0.0,
            squares: 0.0,
            max: 0,
            at_issue: [0; DEPTHS],
            first: None,
            last: None,
            in_flight: 0,
            area_ns: 0.0,
            busy_ns: 0.0,
            timed: 0,
        }
    }
}

impl ParallelismTally {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        match step {
            Step::Issued(issue) => {
                self.move_to(issue.request.ts);
                let depth = issue.in_flight;
                self.in_flight = depth;
                self.issues += 1;
                self.sum += depth as f64;
                self.squares += (depth * depth) as f64;
                self.max = self.max.max(depth);
                self.at_issue[(depth.max(1) as usize - 1).min(DEPTHS - 1)] += 1;
            }
            Step::Finished(end) => {
                self.move_to(end.response.ts);
                self.in_flight = end.in_flight;
                let time = end.response.service_ns.or(end.response.latency_ns);
                self.timed += u64::from(time.is_some());
            }
            Step::Lost { ts, in_flight } => {
                self.move_to(*ts);
                self.in_flight = *in_flight;
            }
        }
    }

    fn move_to(&mut self, ts: Nanos) {
        self.first.get_or_insert(ts);
        let last = self.last.replace(ts).unwrap_or(ts);
        let passed = ts.saturating_sub(last).max(0) as f64;
        self.area_ns += passed * self.in_flight as f64;
        self.busy_ns += if self.in_flight > 0 { passed } else { 0.0 };
    }

    /// The result, with [`Track::little_ratio`](crate::Track::little_ratio); `None` if ends are
    /// unknown.
    pub fn result(&self, little_ratio: Option<f64>) -> Option<Parallelism> {
        if self.timed == 0 || self.issues == 0 {
            return None;
        }
        let n = self.issues as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        let span = self.last?.saturating_sub(self.first?).max(1) as f64;
        let most = (0..DEPTHS).max_by_key(|d| (self.at_issue[*d], std::cmp::Reverse(*d)))?;
        let beside = most.saturating_sub(1)..=(most + 1).min(DEPTHS - 1);
        let near: u64 = self.at_issue[beside].iter().sum();
        Some(Parallelism {
            requests: self.issues,
            at_issue_mean: mean,
            at_issue_cv: variance.sqrt() / mean,
            at_issue_max: self.max,
            modal: most as i64 + 1,
            modal_share: near as f64 / n,
            in_flight_mean: self.area_ns / span,
            busy_share: self.busy_ns / span,
            little_ratio,
        })
    }
}
