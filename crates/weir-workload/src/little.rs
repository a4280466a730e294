//! [`Little`]: a consistency check of the number of requests in flight.
//!
//! Little's law (Little 1961, "A proof for the queuing formula L = lambda W"): the mean number in
//! flight is the rate times the mean time in flight, so the integral of the number in flight over
//! time is the sum of the times. The number is counted from issues and ends, the times are measured
//! by the source: where events are missing, the two differ.

use weir_model::Nanos;

use crate::event::Response;

/// The ratios at which the number in flight is reliable. Below, completions are missing and their
/// requests count as in flight for too long; above, issues are missing.
const RELIABLE: std::ops::RangeInclusive<f64> = 0.8..=1.25;

/// Whether a number in flight with this ratio of times to integral is reliable.
pub fn is_reliable(ratio: f64) -> bool {
    RELIABLE.contains(&ratio)
}

/// Why a number in flight with this ratio is not reported.
pub fn unreliable(ratio: f64) -> String {
    let missing = match ratio < 1.0 {
        true => "completion events are missing",
        false => "issue events are missing",
    };
    format!("Little's-law check failed (ratio {ratio:.2}, expected 1): {missing}")
}

/// Both sides of the law so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Little {
    first: Option<Nanos>,
    last: Nanos,
    /// Integral of the number in flight over time.
    area_ns: f64,
    /// Sum of the times in flight of the requests that finished.
    times_ns: f64,
    /// The longest of those.
    time_max_ns: Nanos,
}

impl Little {
    /// Advances to `ts`, with this number of requests in flight until then.
    pub fn advance(&mut self, ts: Nanos, in_flight: usize) {
        if self.first.is_none() {
            (self.first, self.last) = (Some(ts), ts);
        }
        let passed = ts.saturating_sub(self.last).max(0);
        self.area_ns += passed as f64 * in_flight as f64;
        self.last = self.last.max(ts);
    }

    /// Adds a completed request. Requests issued before the first event do not count.
    pub fn finish(&mut self, response: &Response, issue_is_known: bool) {
        let Some(time) = response.service_ns.or(response.latency_ns) else {
            return;
        };
        let issued = response.ts.saturating_sub(time);
        if issue_is_known || self.first.is_some_and(|first| issued >= first) {
            self.times_ns += time as f64;
            self.time_max_ns = self.time_max_ns.max(time);
        }
    }

    /// Times over integral, with the requests in flight that were issued at the times in `open`.
    /// Those that are in flight for longer than any that finished count as if their end were
    /// missing.
    pub fn ratio(&self, open: impl Iterator<Item = Nanos>) -> Option<f64> {
        let ages = open.map(|issued| self.last.saturating_sub(issued));
        let young: f64 = ages
            .filter(|age| *age <= self.time_max_ns)
            .map(|age| age as f64)
            .sum();
        (self.area_ns > 0.0).then(|| (self.times_ns + young) / self.area_ns)
    }
}
