//! [`Verdict`]: the kind of workload in a few words, by documented rules.
//!
//! The first matching rule applies; shares are of requests:
//!
//! - log-structured: of the writes at least 70 % are sequential, of the reads at least 60 % random,
//!   and each are at least 10 % of all.
//! - sequential, or k interleaved sequential streams: at least 70 % continue a run forward, with
//!   one run or k runs alternating.
//! - reverse scan: at least 70 % continue a run backward.
//! - strided: at least 70 % continue a run at a constant distance.
//! - random: at least 70 % are at a random address, or at one just used.
//! - mixed: none of these; the parts are those with at least 10 %.

use serde::Serialize;

use crate::analysis::mix::Mix;
use crate::analysis::order::{Order, Sequence};
use crate::evidence::{Confidence, Evidence};

/// The share of the requests from which on a pattern is dominant.
pub const PREVAILING_SHARE: f64 = 0.7;

/// The smallest random share of the reads of a log-structured workload.
const RANDOM_READS_SHARE: f64 = 0.6;

/// The smallest reported share.
const PART_SHARE: f64 = 0.1;

/// The kind of workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The pattern; as JSON `pattern` is its name, and `streams` beside it how many.
    #[serde(flatten)]
    pub pattern: Pattern,
    /// The text form: `4 interleaved sequential streams`.
    pub label: String,
    /// Its parts, the greatest first.
    pub parts: Vec<Part>,
    /// The confidence.
    pub confidence: Confidence,
    /// The evidence.
    pub evidence: Vec<Evidence>,
}

/// A kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "pattern", rename_all = "snake_case")]
pub enum Pattern {
    /// Consecutive runs.
    Sequential,
    /// Several interleaved runs.
    InterleavedStreams {
        /// The number of runs.
        streams: u32,
    },
    /// Backward runs.
    ReverseScan,
    /// Runs with gaps of constant length.
    Strided,
    /// Random addresses.
    Random,
    /// Appending writes and random reads.
    LogStructured,
    /// Several patterns.
    Mixed,
}

/// A part of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// The pattern.
    #[serde(flatten)]
    pub pattern: Pattern,
    /// Its share of the requests, from 0 to 1.
    pub share: f64,
}

impl Pattern {
    /// As text.
    pub fn label(self) -> String {
        match self {
            Pattern::Sequential => "sequential".into(),
            Pattern::InterleavedStreams { streams } => {
                format!("{streams} interleaved sequential streams")
            }
            Pattern::ReverseScan => "reverse scan".into(),
            Pattern::Strided => "strided".into(),
            Pattern::Random => "random".into(),
            Pattern::LogStructured => "log-structured".into(),
            Pattern::Mixed => "mixed".into(),
        }
    }
}

/// The kind of workload with this mix and order; `None` with too few requests.
pub fn verdict(mix: &Mix, order: &Order) -> Option<Verdict> {
    let confidence = Confidence::of_requests(order.all.requests)?;
    let parts = parts(&order.all);
    let greatest = parts.first()?;
    let (pattern, label, clear) = match log_structured(mix, order) {
        true => (Pattern::LogStructured, Pattern::LogStructured.label(), true),
        false if greatest.share >= PREVAILING_SHARE => {
            // Near the threshold, `mixed` would be as plausible.
            let clear = greatest.share >= PREVAILING_SHARE + 0.1;
            (greatest.pattern, greatest.pattern.label(), clear)
        }
        false => {
            let part = |p: &Part| format!("{} ({:.0} %)", p.pattern.label(), 100.0 * p.share);
            let parts: Vec<String> = parts.iter().map(part).collect();
            (Pattern::Mixed, format!("mixed: {}", parts.join(", ")), true)
        }
    };
    Some(Verdict {
        pattern,
        label,
        parts,
        confidence: match clear {
            true => confidence,
            false => confidence.min(Confidence::Moderate),
        },
        evidence: evidence(pattern, order),
    })
}

fn log_structured(mix: &Mix, order: &Order) -> bool {
    let of_both = |share: f64| (PART_SHARE..=1.0 - PART_SHARE).contains(&share);
    mix.result().read_share.is_some_and(of_both)
        && order.writes.sequential_share >= Some(PREVAILING_SHARE)
        && order.reads.random_share >= Some(RANDOM_READS_SHARE)
}

/// The patterns above the smallest reported share; the greatest in any case.
fn parts(all: &Sequence) -> Vec<Part> {
    let forward = match all.interleaved_streams {
        0 | 1 => Pattern::Sequential,
        streams => Pattern::InterleavedStreams { streams },
    };
    let share = |share: Option<f64>| share.unwrap_or_default();
    let scattered = share(all.random_share) + share(all.repeated_share);
    let mut parts: Vec<Part> = [
        (forward, share(all.sequential_share)),
        (Pattern::ReverseScan, share(all.reverse_share)),
        (Pattern::Strided, share(all.strided_share)),
        (Pattern::Random, scattered),
    ]
    .into_iter()
    .map(|(pattern, share)| Part { pattern, share })
    .collect();
    parts.sort_by(|a, b| b.share.total_cmp(&a.share));
    let reported = parts.iter().filter(|p| p.share >= PART_SHARE).count();
    parts.truncate(reported.max(1));
    parts
}

fn evidence(pattern: Pattern, order: &Order) -> Vec<Evidence> {
    let all = &order.all;
    let mut evidence = vec![Evidence::new("requests", all.requests as f64)];
    let mut add = |name, value: Option<f64>| {
        evidence.extend(value.map(|value| Evidence::new(name, value)));
    };
    if pattern == Pattern::LogStructured {
        add("write_sequential_share", order.writes.sequential_share);
        add("write_run_requests_mean", order.writes.run_requests_mean);
        add("read_random_share", order.reads.random_share);
        return evidence;
    }
    add("sequential_share", all.sequential_share);
    add("reverse_share", all.reverse_share);
    add("strided_share", all.strided_share);
    add("random_share", all.random_share);
    add("repeated_share", all.repeated_share);
    add(
        "interleaved_streams",
        Some(f64::from(all.interleaved_streams)),
    );
    add("seek_sequential_share", all.seek_sequential_share);
    add("closest_sequential_share", all.closest_sequential_share);
    evidence
}
