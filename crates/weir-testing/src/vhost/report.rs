//! [`LoadReport`]: the result of a load, optionally request by request, and its duration.

use std::time::Duration;

use weir_sketch::LogLinear;

use super::{BlockRequest, RequestStatus};

/// A request of a load. A queue's requests are recorded in the order of their submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    /// The request.
    pub ask: BlockRequest,
    /// Its outcome; `None` if the back end disconnected before.
    pub status: Option<RequestStatus>,
    /// When it was put into the ring, on the kernel's monotonic clock.
    pub made_ns: i64,
    /// When its end was seen, on the same clock; 0 if it never was.
    pub done_ns: i64,
}

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// By queue, the requests, if they were recorded.
    pub log: Vec<Vec<LoggedRequest>>,
    /// Completed requests.
    pub requests: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Of these, those that the disk does not support.
    pub unsupported: u64,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// From submission to completion in the ring, in nanoseconds.
    pub latency: LogLinear<i64>,
    /// How often the client reconnected.
    pub reconnects: u32,
}

impl LoadReport {
    /// Completed requests per second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// A quantile of the latency; 0 without requests.
    pub fn latency_ns(&self, quantile: f64) -> i64 {
        self.latency.quantile(quantile).unwrap_or(0)
    }

    /// Adds the result of another queue.
    pub(super) fn merge(&mut self, other: LoadReport) {
        self.log.extend(other.log);
        self.requests += other.requests;
        self.failed += other.failed;
        self.unsupported += other.unsupported;
        self.latency.merge(&other.latency);
    }
}
