//! [`Reuse`]: reuse distances of blocks, the hit ratio of caches by size, and the working set.
//!
//! A request touches each block of 4 KiB that it overlaps. The number of other blocks between two
//! touches of a block is its LRU stack distance, computed exactly while memory suffices and then
//! for a sample of the blocks as in SHARDS (Waldspurger and others 2015; see
//! [`weir_sketch::ReuseSampler`]). The authors of `vscsiStats` considered this too expensive online
//! (Ahmad 2007, section 3.6); here it takes a fixed memory.

use serde::Serialize;
use weir_model::{Nanos, Op, SECTOR_BYTES};
use weir_sketch::{Distinct, ReuseHistogram, ReuseSampler};

use crate::intervals::Intervals;
use crate::track::Step;

/// The default block length.
pub const BLOCK_BYTES: i64 = 4_096;

/// The default memory for tracked blocks: 1 MiB holds about 40,000.
pub const MEMORY_BYTES: usize = 1 << 20;

/// The largest number of tracked blocks of one request: 256 MiB of 4 KiB.
const BLOCKS_MAX: i64 = 1 << 16;

/// The largest number of intervals of the working set.
const INTERVALS_MAX: i64 = 64;

/// The shortest interval.
const INTERVAL_NS_MIN: Nanos = 1_000_000;

/// Cache sizes per power of two.
const SIZES_PER_POWER: u64 = 4;

/// The smallest reported cache, in blocks.
const SIZE_MIN: u64 = 16;

/// The reuse of blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reuse {
    /// The length of a block.
    pub block_bytes: i64,
    /// Touches of blocks by reads and writes.
    pub touches: u64,
    /// Touches by reads.
    pub read_touches: u64,
    /// First touches of blocks, as a share of all: no cache hits them.
    pub first_share: f64,
    /// Whether all blocks were tracked, so that distances are exact.
    pub exact: bool,
    /// The share of the blocks that is tracked now.
    pub sampling_rate: f64,
    /// The miss ratio of LRU caches, the smallest first, up to the size beyond which hits do not
    /// increase.
    pub curve: Vec<CacheSize>,
    /// The working set.
    pub working_set: WorkingSet,
}

/// A cache and its miss ratio, with allocation on reads and writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheSize {
    /// Its capacity.
    pub cache_bytes: i64,
    /// The share of accesses that miss.
    pub miss_ratio: f64,
    /// The error of the ratio: the half width of its 95 % confidence interval.
    pub miss_ratio_error: f64,
    /// The share of touches by reads that miss; `None` without reads.
    pub read_miss_ratio: Option<f64>,
    /// The error of that share.
    pub read_miss_ratio_error: Option<f64>,
}

/// Distinct blocks that are touched.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkingSet {
    /// All, in bytes.
    pub bytes: f64,
    /// Blocks read, in bytes.
    pub read_bytes: f64,
    /// Blocks written, in bytes.
    pub written_bytes: f64,
    /// The standard deviation of these numbers, relative to them.
    pub error_share: f64,
    /// The length of an interval.
    pub interval_ns: Nanos,
    /// The intervals with touches, in order.
    pub intervals: Vec<InUse>,
}

/// The working set of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct InUse {
    /// Its start.
    pub ts_ns: Nanos,
    /// Distinct blocks touched in it, in bytes.
    pub bytes: f64,
    /// Distinct blocks touched until its end, in bytes.
    pub bytes_so_far: f64,
}

/// Collects requests.
#[derive(Clone, Debug)]
pub struct ReuseTally {
    block_sectors: i64,
    sampler: ReuseSampler,
    reads: ReuseHistogram,
    writes: ReuseHistogram,
    read: Distinct,
    written: Distinct,
    /// Distinct blocks by interval.
    over_time: Intervals<Distinct>,
}

impl Default for ReuseTally {
    fn default() -> ReuseTally {
        ReuseTally::new(BLOCK_BYTES, MEMORY_BYTES)
    }
}

impl ReuseTally {
    /// Tracks blocks of `block_bytes`, rounded down to sectors, in at most `memory_bytes` for the
    /// reuse distances, at least 256 KiB; the working set takes up to 140 kB more.
    pub fn new(block_bytes: i64, memory_bytes: usize) -> ReuseTally {
        let histograms = 2 * ReuseHistogram::SKETCH_BYTES_MAX;
        let sampler = ReuseSampler::new(memory_bytes.saturating_sub(histograms));
        ReuseTally::with(block_bytes, sampler, ReuseHistogram::SKETCH_BITS)
    }

    /// The same with exact distances, for a recording: exact while blocks fit `memory_bytes`, 21
    /// bytes each, plus 16 bytes for each distinct distance.
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
            over_time: Intervals::new(INTERVAL_NS_MIN, INTERVALS_MAX, Distinct::merge),
        }
    }

    /// Adds a step.
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
            let (register, rank) = Distinct::place(block);
            by_op.add_place(register, rank);
            now.add_place(register, rank);
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
        let sets = 2 + self.over_time.iter().count();
        reuse + sets * self.read.bytes()
    }

    /// The result; `None` without reads and writes.
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
        let intervals = self.over_time.iter().map(|(ts_ns, set)| {
            so_far.merge(set);
            InUse {
                ts_ns,
                bytes: bytes(set),
                bytes_so_far: bytes(&so_far),
            }
        });
        WorkingSet {
            bytes: bytes(&all),
            read_bytes: bytes(&self.read),
            written_bytes: bytes(&self.written),
            error_share: Distinct::ERROR,
            interval_ns: self.over_time.interval_ns(),
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
