//! [`Report`]: what a load did, request by request if asked, and how long it took.

use std::time::Duration;

use weir_sketch::LogLinear;

use super::{Ask, Status};

/// A request that a load made. A queue's requests are noted in the order in which they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What was asked.
    pub ask: Ask,
    /// How it ended; `None` if the back end went away before.
    pub status: Option<Status>,
    /// When it was put into the ring, on the kernel's monotonic clock.
    pub made_ns: i64,
    /// When it was seen to be done, on the same clock; 0 if it never was.
    pub done_ns: i64,
}

/// What a load did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// By queue, the requests made, if they were to be noted.
    pub log: Vec<Vec<Asked>>,
    /// Requests that were done.
    pub requests: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Of these, those that the disk does not support.
    pub unsupported: u64,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// From the ring back to the ring, in nanoseconds.
    pub latency: LogLinear<i64>,
    /// How often the back end went away and came back.
    pub reconnects: u32,
}

impl Report {
    /// Requests done in a second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// A quantile of the latency; 0 without requests.
    pub fn latency_ns(&self, quantile: f64) -> i64 {
        self.latency.quantile(quantile).unwrap_or(0)
    }

    /// Takes in what another queue did at the same time.
    pub(super) fn merge(&mut self, other: Report) {
        self.log.extend(other.log);
        self.requests += other.requests;
        self.failed += other.failed;
        self.unsupported += other.unsupported;
        self.latency.merge(&other.latency);
    }
}
