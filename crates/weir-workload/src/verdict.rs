//! [`Verdict`]: what kind of workload it is, in a few words, by rules that anyone can check.
//!
//! | pattern | rule, by requests |
//! | --- | --- |
//! | log-structured | of the writes 70 % or more are sequential, of the reads 60 % or more random, and each are 10 % of all or more |
//! | sequential, k interleaved sequential streams | 70 % or more continue a run forward; k run counts as one |
//! | reverse scan | 70 % or more continue a run backward |
//! | strided | 70 % or more continue a run at a constant distance |
//! | random | 70 % or more are at a place of their own, or at one just used |
//! | mixed | none of these; the parts are those with 10 % or more |

use serde::Serialize;

use crate::analysis::mix::Mix;
use crate::analysis::order::{Order, Sequence};
use crate::evidence::{Confidence, Evidence};

/// A pattern prevails from this share of the requests on.
pub const PREVAILING_SHARE: f64 = 0.7;

/// Reads of a log-structured workload are at least so random.
const RANDOM_READS_SHARE: f64 = 0.6;

/// Less is not worth a word.
const PART_SHARE: f64 = 0.1;

/// What kind of workload it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The pattern; as JSON `pattern` is its name, and `streams` beside it how many.
    #[serde(flatten)]
    pub pattern: Pattern,
    /// The same in words: `4 interleaved sequential streams`.
    pub label: String,
    /// What it is made of, the greatest part first.
    pub parts: Vec<Part>,
    /// How far it can be relied on.
    pub confidence: Confidence,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
}

/// A kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "pattern", rename_all = "snake_case")]
pub enum Pattern {
    /// One run after the other.
    Sequential,
    /// Several runs that take turns.
    InterleavedStreams {
        /// How many.
        streams: u32,
    },
    /// Runs towards the beginning of the disk.
    ReverseScan,
    /// Runs with gaps of constant length.
    Strided,
    /// Each at a place of its own.
    Random,
    /// Writes to the end of a log, reads all over it.
    LogStructured,
    /// Several of these.
    Mixed,
}

/// A part of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// What it is.
    #[serde(flatten)]
    pub pattern: Pattern,
    /// Its share of the requests, from 0 to 1.
    pub share: f64,
}

impl Pattern {
    /// In words.
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

/// What kind of workload has this mix and order; `None` where there are too few requests to tell.
pub fn verdict(mix: &Mix, order: &Order) -> Option<Verdict> {
    let confidence = Confidence::of_requests(order.all.requests)?;
    let parts = parts(&order.all);
    let greatest = parts.first()?;
    let (pattern, label, clear) = match log_structured(mix, order) {
        true => (Pattern::LogStructured, Pattern::LogStructured.label(), true),
        false if greatest.share >= PREVAILING_SHARE => {
            // Near the border it might as well be called mixed.
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

/// The patterns that have a share worth a word; the greatest even if it has not.
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
    let told = parts.iter().filter(|p| p.share >= PART_SHARE).count();
    parts.truncate(told.max(1));
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
