//! Data structures shared with the kernel side of histograms, as defined in `hist.h`: the position
//! of each distribution in a block, its bins, and the configuration.

use std::ops::Range;

use weir_model::SECTOR_BYTES;
use weir_sketch::LogBins;
use weir_workload::{Distribution, Metric};

/// `struct hist_config`, in bytes.
pub const CONFIG_BYTES: usize = 21_656;

/// `union block`, in bytes.
pub const BLOCK_BYTES: usize = 33_744;

/// `struct blocks_of`, in bytes.
pub const BLOCKS_OF_BYTES: usize = 32;

/// Operations, each with its own block; the last block is of all operations.
pub const OPS: usize = 5;

/// `struct subject`, in bytes.
pub const SUBJECT_BYTES: usize = 64;

/// `struct past`, in bytes.
pub const PAST_BYTES: usize = 576;

/// The words of a `struct past` that hold sectors.
pub const PAST_SECTORS: Range<usize> = 9..65;

/// No sector (`NO_SECTOR`).
pub const NO_SECTOR: u64 = 1 << 50;

/// `struct subject_bucket`, in bytes.
pub const BUCKET_BYTES: usize = 64;

/// Names in a bucket.
pub const WAYS: usize = 8;

/// `struct not_entered`, in bytes.
pub const NOT_ENTERED_BYTES: usize = 64;

/// `struct hist_state`, in bytes.
pub const STATE_BYTES: usize = 64;

/// Positions in `struct hist_state`, in 8-byte words.
pub mod state {
    /// Number of subjects in use.
    pub const SUBJECTS: usize = 0;
}

/// Positions in `struct subject`, in 8-byte words.
pub mod subject {
    /// Order of its events.
    pub const ORDER: usize = 0;
    /// Owner, process or cgroup.
    pub const WHO: usize = 2;
    /// Device.
    pub const DEVICE: usize = 3;
}

/// Maximum number of requests whose last sectors are kept (`ENDS_MAX`).
pub const CLOSEST_OF_MAX: usize = 32;

/// Maximum number of subjects (`NUMBER_BITS`, less the one that stands for none).
pub const SUBJECTS_MAX: usize = (1 << 16) - 2;

/// Lengths and depths below these have their bins in a table (`SHORT_SECTORS`, `SHALLOW`).
const SHORT_SECTORS: i64 = 1024;
const SHALLOW: i64 = 256;

/// The definition of the bins of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    /// The metric whose limits divide them.
    metric: Metric,
    /// Log bins of negative values.
    negative: usize,
    /// Number of log bins.
    log_bins: usize,
}

const LENGTH: Kind = Kind {
    metric: Metric::Length,
    negative: 0,
    log_bins: 464,
};

const SEEK: Kind = Kind {
    metric: Metric::Seek,
    negative: 527,
    log_bins: 1055,
};

const TIME: Kind = Kind {
    metric: Metric::Service,
    negative: 0,
    log_bins: 592,
};

const DEPTH: Kind = Kind {
    metric: Metric::Outstanding,
    negative: 0,
    log_bins: 208,
};

/// A distribution in a block, in 8-byte words.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its metric.
    pub metric: Metric,
    /// Position of its head: sum, minimum, maximum.
    pub head: usize,
    /// Position of its bins.
    pub bins: usize,
    kind: Kind,
}

/// The meaning of a bin of the kernel: the log bin, and the bin under vscsiStats' limits.
pub type Bin = (i32, usize);

/// The log bins of a kind, each with the limit that cuts it.
struct Cuts {
    kind: Kind,
}

impl Kind {
    fn limits(self) -> &'static [i64] {
        self.metric.limits()
    }

    fn bins(self) -> usize {
        self.log_bins + self.limits().len()
    }

    /// The number of the bin of a value: the number of its log bin plus the number of limits below
    /// the value.
    fn number_of(self, value: i64) -> usize {
        let limits = self.limits().partition_point(|limit| *limit < value);
        (LogBins::bin(value) + self.negative as i32) as usize + limits
    }
}

impl Cuts {
    /// Each log bin: its number, the number of limits below it, and the limit that cuts it.
    fn iter(&self) -> impl Iterator<Item = (i32, usize, Option<i64>)> {
        let kind = self.kind;
        (0..kind.log_bins).map(move |at| {
            let bin = at as i32 - kind.negative as i32;
            let (a, b) = LogBins::span(bin);
            let (low, high) = (a.min(b), a.max(b));
            let below = kind.limits().partition_point(|limit| *limit < low);
            let next = kind.limits().get(below).copied();
            (bin, below, next.filter(|limit| *limit < high))
        })
    }
}

/// The parts of a block, contiguous: the heads, then the bins.
fn parts<const N: usize>(of: [(Metric, Kind); N]) -> [Part; N] {
    const HEAD_WORDS: usize = 3;
    let mut bins = N * HEAD_WORDS;
    let mut head = 0;
    of.map(|(metric, kind)| {
        let part = Part {
            metric,
            head,
            bins,
            kind,
        };
        head += HEAD_WORDS;
        bins += kind.bins();
        part
    })
}

/// `struct of_op`.
pub fn parts_of_op() -> [Part; 7] {
    parts([
        (Metric::Length, LENGTH),
        (Metric::Seek, SEEK),
        (Metric::Interarrival, TIME),
        (Metric::Outstanding, DEPTH),
        (Metric::Service, TIME),
        (Metric::Wait, TIME),
        (Metric::Latency, TIME),
    ])
}

/// `struct of_all`: distributions that are not the sum over the operations.
pub fn parts_of_all() -> [Part; 3] {
    parts([
        (Metric::Seek, SEEK),
        (Metric::SeekClosest, SEEK),
        (Metric::Interarrival, TIME),
    ])
}

impl Part {
    /// The meaning of each of its bins.
    pub fn meaning(&self) -> Vec<Bin> {
        let mut meaning = Vec::with_capacity(self.kind.bins());
        for (bin, below, cut) in (Cuts { kind: self.kind }).iter() {
            // Limits between two log bins leave an unused number.
            meaning.resize(meaning.len().max(self.number(bin, below)), (bin, below));
            meaning.push((bin, below));
            if cut.is_some() {
                meaning.push((bin, below + 1));
            }
        }
        meaning.resize(self.kind.bins(), *meaning.last().expect("bins"));
        meaning
    }

    fn number(&self, bin: i32, below: usize) -> usize {
        (bin + self.kind.negative as i32) as usize + below
    }

    /// Adds the content of these words of a block to `to`. `words` are those of the whole block.
    pub fn add_to(&self, words: &[u64], meaning: &[Bin], to: &mut Distribution) {
        let counts = &words[self.bins..][..meaning.len()];
        let mut ends = None;
        for (count, &(log, limit)) in counts.iter().zip(meaning) {
            if *count > 0 {
                to.count += count;
                to.bins[limit] += count;
                to.log.add_to_bin(log, *count);
                ends = Some((ends.map_or(log, |(first, _)| first), log));
            }
        }
        let Some((first, last)) = ends else {
            return;
        };
        to.sum += i128::from(words[self.head] as i64);
        let (least, greatest) = (!words[self.head + 1], words[self.head + 2]);
        let value = |key: u64| (key ^ 1 << 63) as i64;
        to.min = to.min.min(self.within(value(least), first));
        to.max = to.max.max(self.within(value(greatest), last));
    }

    /// `value` if it lies in log bin `bin`, else the nearest value of that bin: a value that is
    /// entered during a reset may be counted after it, but recorded as an extreme before it.
    fn within(&self, value: i64, bin: i32) -> i64 {
        let (a, b) = LogBins::span(bin);
        let last = (self.kind.log_bins - self.kind.negative) as i32 - 1;
        // The outermost bins include all values beyond their limit.
        let low = if bin == -last { i64::MIN } else { a.min(b) };
        let high = if bin == last { i64::MAX } else { a.max(b) };
        value.clamp(low, high)
    }
}

/// `struct hist_config`: constants set before the programs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of buckets of names less one, a power of two less one.
    pub bucket_mask: u32,
    /// Number of entries of the table of owners less one, a power of two less one.
    pub owner_mask: u32,
    /// Processors.
    pub processors: u32,
    /// Most subjects.
    pub subjects_max: u32,
    /// Number of blocks, including one that is not allocated.
    pub blocks_max: u32,
    /// Number of last requests that are compared for the closest.
    pub closest_of: u32,
    /// True if histograms are kept.
    pub on: bool,
    /// `enum by`.
    pub by: u8,
    /// True if insertion is observed.
    pub waits: bool,
    /// The clauses of the histograms, a bit each.
    pub clauses: u8,
}

impl Config {
    /// The bytes of the programs' `.rodata.hist`.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(CONFIG_BYTES);
        for kind in [TIME, SEEK, LENGTH, DEPTH] {
            for (bin, below, cut) in (Cuts { kind }).iter() {
                /// A limit that no value exceeds.
                const NEVER: i64 = 1 << 50;
                let number = (bin + kind.negative as i32) as i64 + below as i64;
                let word = cut.unwrap_or(NEVER) << 12 | number;
                out.extend(word.to_ne_bytes());
            }
        }
        let short = (0..SHORT_SECTORS).map(|sectors| LENGTH.number_of(sectors * SECTOR_BYTES));
        let shallow = (0..SHALLOW).map(|depth| DEPTH.number_of(depth));
        for number in short.chain(shallow) {
            out.extend((number as u16).to_ne_bytes());
        }
        let words = [
            self.bucket_mask,
            self.owner_mask,
            self.processors,
            self.subjects_max,
            self.blocks_max,
            self.closest_of,
        ];
        for word in words {
            out.extend(word.to_ne_bytes());
        }
        let log2 = |x: u32| x.max(1).ilog2() as u8;
        out.extend((0..256).map(log2));
        out.extend((0..256).map(|x| log2(x).saturating_sub(4)));
        out.extend([
            u8::from(self.on),
            self.by,
            u8::from(self.waits),
            self.clauses,
        ]);
        out.extend([0; 4]);
        assert_eq!(out.len(), CONFIG_BYTES, "every field is written");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fill_a_block() {
        let end = |part: &Part| part.bins + part.kind.bins();
        assert_eq!(parts_of_op().last().map(end), Some(BLOCK_BYTES / 8));
        assert!(parts_of_all().last().map(end) <= Some(BLOCK_BYTES / 8));
    }

    #[test]
    fn a_bin_of_the_kernel_is_one_log_bin_and_one_limit() {
        for part in parts_of_op() {
            let meaning = part.meaning();
            let limits = part.metric.limits();
            let near = limits.iter().flat_map(|l| [l - 1, *l, l + 1]);
            for value in near.filter(|v| part.kind.negative > 0 || *v >= 0) {
                let log = LogBins::bin(value);
                let limit = limits.partition_point(|l| *l < value);
                let found = meaning[part.kind.number_of(value)];
                assert_eq!(found, (log, limit), "{:?} {value}", part.metric);
            }
        }
    }

    #[test]
    fn no_log_bin_is_cut_twice() {
        for kind in [TIME, SEEK, LENGTH, DEPTH] {
            for (bin, below, cut) in (Cuts { kind }).iter() {
                let (a, b) = LogBins::span(bin);
                let high = a.max(b);
                let second = kind.limits().get(below + 1);
                assert!(cut.is_none() || second.is_none_or(|l| *l >= high), "{bin}");
            }
        }
    }
}
