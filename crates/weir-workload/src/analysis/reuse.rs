//! [`Reuse`]: how soon blocks are used again, what a cache of which size would hit, and how many blocks are in
//! use.
//!
//! A request touches each block of 4 KiB that it lies in. Between two touches of a block lie so many others:
//! its LRU stack distance, found exactly while memory suffices and of a sample of the blocks from then on, as
//! SHARDS does (Waldspurger and others 2015; see [`weir_sketch::ReuseSampler`]). What the authors of `vscsiStats`
//! thought too expensive to keep online (Ahmad 2007, section 3.6), in a fixed memory.

use std::collections::BTreeMap;

use serde::Serialize;
use weir_model::{Nanos, Op, SECTOR_BYTES};
use weir_sketch::{Distinct, ReuseHistogram, ReuseSampler};

use crate::track::Step;

/// The length of a block, unless told.
pub const BLOCK_BYTES: i64 = 4_096;

/// Memory for the blocks that are followed, unless told: 1 MiB follows some 40,000.
pub const MEMORY_BYTES: usize = 1 << 20;

/// Most blocks of one request that are followed: 256 MiB of 4 KiB.
const BLOCKS_MAX: i64 = 1 << 16;

/// Most intervals of the working set.
const INTERVALS_MAX: i64 = 64;

/// The shortest interval.
const INTERVAL_NS_MIN: Nanos = 1_000_000;

/// Sizes of caches to a power of two.
const SIZES_PER_POWER: u64 = 4;

/// The smallest cache that is told, in blocks.
const SIZE_MIN: u64 = 16;

/// How often and how soon blocks are used again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reuse {
    /// The length of a block.
    pub block_bytes: i64,
    /// Touches of blocks by reads and writes.
    pub touches: u64,
    /// Those by reads.
    pub read_touches: u64,
    /// Touches of blocks that were not touched before, as a share of all: no cache hits them.
    pub first_share: f64,
    /// Whether all blocks were followed, so that distances are exact.
    pub exact: bool,
    /// The share of the blocks that is followed now.
    pub sampling_rate: f64,
    /// The miss ratio of LRU caches, the smallest first, until a larger one hits no more.
    pub curve: Vec<CacheSize>,
    /// What is in use.
    pub working_set: WorkingSet,
}

/// A cache and what misses it, with reads and writes both allocating.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheSize {
    /// What it holds.
    pub cache_bytes: i64,
    /// The share of touches that miss.
    pub miss_ratio: f64,
    /// How far from the true one that is: in 95 of 100 cases not more.
    pub miss_ratio_error: f64,
    /// The share of touches by reads that miss; `None` without reads.
    pub read_miss_ratio: Option<f64>,
    /// Likewise.
    pub read_miss_ratio_error: Option<f64>,
}

/// Different blocks that are touched.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkingSet {
    /// All of them, in bytes.
    pub bytes: f64,
    /// Those that were read.
    pub read_bytes: f64,
    /// Those that were written.
    pub written_bytes: f64,
    /// The standard deviation of these numbers, relative to them.
    pub error_share: f64,
    /// The length of an interval.
    pub interval_ns: Nanos,
    /// The intervals in which something was touched, in order.
    pub intervals: Vec<InUse>,
}

/// The working set of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct InUse {
    /// When it begins.
    pub ts_ns: Nanos,
    /// Different blocks touched in it, in bytes.
    pub bytes: f64,
    /// Different blocks touched until its end, in bytes.
    pub bytes_so_far: f64,
}

/// Takes requests in.
#[derive(Clone, Debug)]
pub struct ReuseTally {
    block_sectors: i64,
    sampler: ReuseSampler,
    reads: ReuseHistogram,
    writes: ReuseHistogram,
    read: Distinct,
    written: Distinct,
    over_time: OverTime,
}

/// Different blocks by interval.
#[derive(Clone, Debug)]
struct OverTime {
    interval_ns: Nanos,
    /// By number since the epoch.
    intervals: BTreeMap<i64, Distinct>,
}

impl Default for ReuseTally {
    fn default() -> ReuseTally {
        ReuseTally::new(BLOCK_BYTES, MEMORY_BYTES)
    }
}

impl ReuseTally {
    /// Follows blocks of `block_bytes`, rounded down to sectors, in at most `memory_bytes` for the reuse distances,
    /// 256 KiB at least; the working set takes up to 140 kB more.
    pub fn new(block_bytes: i64, memory_bytes: usize) -> ReuseTally {
        let histograms = 2 * ReuseHistogram::SKETCH_BYTES_MAX;
        let sampler = ReuseSampler::new(memory_bytes.saturating_sub(histograms));
        ReuseTally::with(block_bytes, sampler, ReuseHistogram::SKETCH_BITS)
    }

    /// The same with every distance kept apart, for a recording: exact while blocks fit `memory_bytes`, 21 bytes
    /// each, and then 16 bytes for each distance there is.
    pub fn exact(block_bytes: i64, memory_bytes: usize) -> ReuseTally {
        let sampler = ReuseSampler::new(memory_bytes);
        ReuseTally::with(block_bytes, sampler, ReuseHistogram::EXACT_BITS)
    }

    fn with(block_bytes: i64, sampler: ReuseSampler, bits: u32) -> ReuseTally {
        ReuseTally {
            block_sectors: (block_bytes / SECTOR_BYTES).max(1),
            sampler,
            reads: ReuseHistogram::new(bits),
            writes: ReuseHistogram::new(bits),
            read: Distinct::default(),
            written: Distinct::default(),
            over_time: OverTime::default(),
        }
    }

    /// Takes a step in.
    pub fn take(&mut self, step: &Step) {
        let Step::Issued(issue) = step else { return };
        let request = &issue.request;
        let (Some(first), 1..) = (request.sector, request.sectors) else {
            return;
        };
        let last = first
            .saturating_add(request.sectors - 1)
            .div_euclid(self.block_sectors);
        let first = first.div_euclid(self.block_sectors);
        let blocks = first..=last.min(first.saturating_add(BLOCKS_MAX - 1));
        let (histogram, by_op) = match request.op {
            Op::Read => (&mut self.reads, &mut self.read),
            Op::Write => (&mut self.writes, &mut self.written),
            Op::Flush | Op::Discard | Op::WriteZeroes => return,
        };
        let now = self.over_time.at(request.ts);
        for block in blocks {
            let block = block as u64;
            histogram.add(self.sampler.touch(block));
            by_op.add(block);
            now.add(block);
        }
    }

    /// Reads and writes together.
    pub fn histogram(&self) -> ReuseHistogram {
        let mut all = self.reads.clone();
        all.merge(&self.writes);
        all
    }

    /// Touches by reads, at distances among reads and writes.
    pub fn reads(&self) -> &ReuseHistogram {
        &self.reads
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        let reuse = self.sampler.bytes() + self.reads.bytes() + self.writes.bytes();
        let sets = 2 + self.over_time.intervals.len();
        reuse + sets * self.read.bytes()
    }

    /// What was seen; `None` without reads and writes.
    pub fn result(&self) -> Option<Reuse> {
        let all = self.histogram();
        if all.references() == 0 {
            return None;
        }
        let sizes = sizes(all.greatest().map_or(0, |distance| distance + 1));
        let block_bytes = self.block_sectors * SECTOR_BYTES;
        let has_reads = self.reads.references() > 0;
        let point = |size| {
            let (of_all, of_reads) = (all.miss_ratio(size), self.reads.miss_ratio(size));
            CacheSize {
                cache_bytes: i64::try_from(size)
                    .unwrap_or(i64::MAX)
                    .saturating_mul(block_bytes),
                miss_ratio: of_all.ratio,
                miss_ratio_error: of_all.error,
                read_miss_ratio: has_reads.then_some(of_reads.ratio),
                read_miss_ratio_error: has_reads.then_some(of_reads.error),
            }
        };
        Some(Reuse {
            block_bytes,
            touches: all.references(),
            read_touches: self.reads.references(),
            first_share: (all.distinct() / all.references() as f64).min(1.0),
            exact: self.sampler.is_exact(),
            sampling_rate: self.sampler.rate(),
            curve: sizes.into_iter().map(point).collect(),
            working_set: self.working_set(block_bytes),
        })
    }

    fn working_set(&self, block_bytes: i64) -> WorkingSet {
        let bytes = |set: &Distinct| set.count() * block_bytes as f64;
        let mut all = self.read.clone();
        all.merge(&self.written);
        let mut so_far = Distinct::default();
        let intervals = self.over_time.intervals.iter().map(|(number, set)| {
            so_far.merge(set);
            InUse {
                ts_ns: number.saturating_mul(self.over_time.interval_ns),
                bytes: bytes(set),
                bytes_so_far: bytes(&so_far),
            }
        });
        WorkingSet {
            bytes: bytes(&all),
            read_bytes: bytes(&self.read),
            written_bytes: bytes(&self.written),
            error_share: Distinct::ERROR,
            interval_ns: self.over_time.interval_ns,
            intervals: intervals.collect(),
        }
    }
}

/// Sizes of caches from the smallest to the first that holds `most` blocks.
fn sizes(most: u64) -> Vec<u64> {
    let powers = SIZE_MIN.ilog2()..62;
    let steps = powers.flat_map(|power| (0..SIZES_PER_POWER).map(move |step| (power, step)));
    let all = steps.map(|(power, step)| (1 << power) + ((step << power) / SIZES_PER_POWER));
    let mut sizes = Vec::new();
    for size in all {
        sizes.push(size);
        if size >= most {
            break;
        }
    }
    sizes
}

impl Default for OverTime {
    fn default() -> OverTime {
        OverTime {
            interval_ns: INTERVAL_NS_MIN,
            intervals: BTreeMap::new(),
        }
    }
}

impl OverTime {
    /// The interval of `ts`, made if there is none; all are lengthened first where they would be too many.
    fn at(&mut self, ts: Nanos) -> &mut Distinct {
        loop {
            let number = ts.div_euclid(self.interval_ns);
            let first = self.intervals.first_key_value().map_or(number, |(n, _)| *n);
            let last = self.intervals.last_key_value().map_or(number, |(n, _)| *n);
            if last.max(number).saturating_sub(first.min(number)) < INTERVALS_MAX {
                return self.intervals.entry(number).or_default();
            }
            self.interval_ns = self.interval_ns.saturating_mul(2);
            for (number, part) in std::mem::take(&mut self.intervals) {
                let whole = self.intervals.entry(number.div_euclid(2)).or_default();
                whole.merge(&part);
            }
        }
    }
}
