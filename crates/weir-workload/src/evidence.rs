//! [`Evidence`] and [`Confidence`]: what a statement rests on, and how far it can be relied on.

use serde::Serialize;

/// A number behind a statement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// What it is, with its unit at the end: `sequential_share`, `read_latency_p99_ns`.
    pub name: &'static str,
    /// How much.
    pub value: f64,
}

/// How far a statement can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// It is more likely than not; look for yourself before you act on it.
    Low,
    /// The numbers carry it, but it was seen for a short time or in few requests.
    Moderate,
    /// The numbers carry it with room to spare.
    High,
}

impl Evidence {
    /// A number with its name.
    pub fn new(name: &'static str, value: f64) -> Evidence {
        Evidence { name, value }
    }
}

impl Confidence {
    /// As a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Confidence::Low => "low",
            Confidence::Moderate => "moderate",
            Confidence::High => "high",
        }
    }

    /// What so many requests can carry at most: [`REQUESTS_LOW`] and ten times as many are the borders.
    /// `None` where they carry nothing.
    pub fn of_requests(requests: u64) -> Option<Confidence> {
        match requests {
            n if n >= 10 * REQUESTS_LOW => Some(Confidence::High),
            n if n >= REQUESTS_LOW => Some(Confidence::Moderate),
            n if n >= REQUESTS_MIN => Some(Confidence::Low),
            _ => None,
        }
    }
}

/// Nothing is concluded from fewer requests: a share has a standard error of 5 % or more then.
pub const REQUESTS_MIN: u64 = 100;

/// Fewer carry a low confidence only: a share has a standard error of up to 1.6 % from here on.
pub const REQUESTS_LOW: u64 = 1_000;
