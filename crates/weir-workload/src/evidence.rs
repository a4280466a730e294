//! [`Evidence`] and [`Confidence`]: the basis of a statement, and its reliability.

use serde::Serialize;

/// A number behind a statement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// Its name, with the unit at the end: `sequential_share`, `read_latency_p99_ns`.
    pub name: &'static str,
    /// The value.
    pub value: f64,
}

/// The reliability of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// More likely than not; verify before acting on it.
    Low,
    /// Supported by the numbers, but from a short time or few requests.
    Moderate,
    /// Clearly supported by the numbers.
    High,
}

impl Evidence {
    /// A number with its name.
    pub fn new(name: &'static str, value: f64) -> Evidence {
        Evidence { name, value }
    }
}

impl Confidence {
    /// The name.
    pub fn as_str(self) -> &'static str {
        match self {
            Confidence::Low => "low",
            Confidence::Moderate => "moderate",
            Confidence::High => "high",
        }
    }

    /// The highest confidence for this number of requests, with thresholds at [`REQUESTS_LOW`] and
    /// ten times that. `None` below.
    pub fn of_requests(requests: u64) -> Option<Confidence> {
        match requests {
            n if n >= 10 * REQUESTS_LOW => Some(Confidence::High),
            n if n >= REQUESTS_LOW => Some(Confidence::Moderate),
            n if n >= REQUESTS_MIN => Some(Confidence::Low),
            _ => None,
        }
    }
}

/// The smallest number of requests for a conclusion: with fewer, a share has a standard error of 5
/// % or more.
pub const REQUESTS_MIN: u64 = 100;

/// The smallest number of requests for more than low confidence: a share has a standard error of up
/// to 1.6 % from here on.
pub const REQUESTS_LOW: u64 = 1_000;
