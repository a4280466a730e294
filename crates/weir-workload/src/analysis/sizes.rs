//! [`Sizes`]: request lengths, the most frequent ones, and alignment.

use serde::Serialize;
use weir_model::{Op, SECTOR_BYTES};
use weir_sketch::Frequent;

use crate::track::{Issue, Step};

/// Distinct lengths counted for each operation; exact up to this number.
const LENGTHS_MAX: usize = 64;

/// The smallest share of the requests of a frequent length.
const DOMINANT_SHARE: f64 = 0.05;

/// The largest number of reported lengths.
const DOMINANT_MAX: usize = 8;

/// The share of the requests that must have an alignment.
const ALIGNED_SHARE: f64 = 0.95;

/// The reported alignments as powers of two: 512 B to 1 MiB.
const ALIGNMENTS: usize = 12;

/// The lengths of a subject's reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sizes {
    /// Reads and writes together.
    pub all: Lengths,
    /// Reads.
    pub reads: Lengths,
    /// Writes.
    pub writes: Lengths,
}

/// The lengths of some requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lengths {
    /// The number of requests.
    pub requests: u64,
    /// Their mean length.
    pub mean_bytes: Option<f64>,
    /// The most frequent lengths, the most frequent first: those with at least 5 % of the requests.
    /// Exact with up to 64 distinct lengths, otherwise too high by at most a 64th of the requests.
    pub dominant: Vec<Dominant>,
    /// The greatest power of two, up to 1 MiB, that divides first sector and length of 95 % of the
    /// requests.
    pub alignment_bytes: Option<i64>,
    /// Requests whose first byte and length are multiples of 4 KiB, from 0 to 1.
    pub aligned_4k_share: Option<f64>,
}

/// A frequent length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dominant {
    /// The length.
    pub bytes: i64,
    /// Requests that have it.
    pub requests: u64,
    /// The same as a share of all, from 0 to 1.
    pub share: f64,
}

/// Collects lengths.
#[derive(Clone, Debug)]
pub struct SizeTally {
    reads: LengthTally,
    writes: LengthTally,
}

#[derive(Clone, Debug)]
struct LengthTally {
    sectors: i128,
    lengths: Frequent<i64>,
    /// By the power of two of the alignment, in sectors.
    alignments: [u64; ALIGNMENTS],
}

impl Default for SizeTally {
    fn default() -> SizeTally {
        SizeTally {
            reads: LengthTally::new(),
            writes: LengthTally::new(),
        }
    }
}

impl SizeTally {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        let Step::Issued(issue) = step else { return };
        match issue.request.op {
            Op::Read => self.reads.take(issue),
            Op::Write => self.writes.take(issue),
            _ => {}
        }
    }

    /// The result.
    pub fn result(&self) -> Sizes {
        let mut all = self.reads.clone();
        all.merge(&self.writes);
        Sizes {
            all: all.result(),
            reads: self.reads.result(),
            writes: self.writes.result(),
        }
    }
}

impl LengthTally {
    fn new() -> LengthTally {
        LengthTally {
            sectors: 0,
            lengths: Frequent::new(LENGTHS_MAX),
            alignments: [0; ALIGNMENTS],
        }
    }

    fn take(&mut self, issue: &Issue) {
        let Some(first) = issue.request.sector else {
            return;
        };
        let sectors = issue.request.sectors;
        self.sectors += i128::from(sectors);
        self.lengths.add(sectors, 1);
        let power = (first | sectors).trailing_zeros() as usize;
        self.alignments[power.min(ALIGNMENTS - 1)] += 1;
    }

    /// Adds the counts of `other`; the reported lengths are those of both.
    fn merge(&mut self, other: &LengthTally) {
        self.sectors += other.sectors;
        let mut lengths = Frequent::new(2 * LENGTHS_MAX);
        for (length, count) in [&self.lengths, &other.lengths]
            .iter()
            .flat_map(|l| l.top(usize::MAX))
        {
            lengths.add(length, count.most);
        }
        self.lengths = lengths;
        for (mine, others) in self.alignments.iter_mut().zip(other.alignments) {
            *mine += others;
        }
    }

    fn result(&self) -> Lengths {
        let requests: u64 = self.alignments.iter().sum();
        if requests == 0 {
            return Lengths::default();
        }
        let total = requests as f64;
        let dominant = self.lengths.top(DOMINANT_MAX).into_iter();
        let dominant = dominant.map(|(sectors, count)| Dominant {
            bytes: sectors * SECTOR_BYTES,
            requests: count.most,
            share: count.most as f64 / total,
        });
        let at_least = |power: usize| self.alignments[power..].iter().sum::<u64>() as f64 / total;
        let alignment = (0..ALIGNMENTS)
            .rev()
            .find(|power| at_least(*power) >= ALIGNED_SHARE);
        Lengths {
            requests,
            mean_bytes: Some(self.sectors as f64 * SECTOR_BYTES as f64 / total),
            dominant: dominant.filter(|d| d.share >= DOMINANT_SHARE).collect(),
            alignment_bytes: alignment.map(|power| SECTOR_BYTES << power),
            aligned_4k_share: Some(at_least(3)),
        }
    }
}
