//! [`GroupWriter`]: adds events to the groups of one ring, as the kernel programs do for a
//! processor (`groups.bpf.h`, which has the rules of concurrency), in the same tables.
//!
//! The tables are in the memory shared with the consumer, who can write to all of it. Nothing read
//! there is an address: cells and blocks are found by their hash in the part of the ring, so
//! invalid words only spoil the consumer's own groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use weir_model::SECTOR_BYTES;

use super::layout::{GroupTables, Record};
use super::ring::Memory;
use super::words::FoldWord;
use crate::ebpf::fold::layout::{
    BIAS, BINS, BLOCK_BYTES, CALLS, CPU_BYTES, Call, LOG_BITS, MEASURES, MOMENTS_WORDS, VALUE_MAX,
    block, cell, cell_bytes, cpu, keep, list_bits,
};
use crate::ebpf::layout::UNKNOWN;

pub use crate::ebpf::fold::Tables;
pub use crate::ebpf::fold::layout::{BlockMeasure, Folding};

/// Number of positions at which a cell or a block may be.
const PROBES: usize = 8;

/// The values of a completed request that groups aggregate, by [`BlockMeasure`].
pub type Values = [u64; MEASURES];

/// The values of a response.
pub fn values_of(record: &Record) -> Values {
    let time = |ns: Option<i64>| ns.and_then(|ns| u64::try_from(ns).ok()).unwrap_or(UNKNOWN);
    let sectors = u64::from(record.sectors);
    // One that is too far is delivered as a row.
    let biased = |seek: i64| seek.checked_add(BIAS).and_then(|x| u64::try_from(x).ok());
    let seek = record
        .seek_sectors
        .map_or(UNKNOWN, |seek| biased(seek).unwrap_or(VALUE_MAX));
    let mut values = [UNKNOWN; MEASURES];
    for (measure, value) in [
        (BlockMeasure::Sectors, sectors),
        (BlockMeasure::Bytes, sectors * SECTOR_BYTES as u64),
        (BlockMeasure::Wait, time(record.wait_ns())),
        (BlockMeasure::Service, time(record.service_ns())),
        (BlockMeasure::Latency, time(record.latency_ns())),
        (BlockMeasure::InFlight, u64::from(record.in_flight)),
        (BlockMeasure::Seek, seek),
        (
            BlockMeasure::Interarrival,
            record.interarrival_ns.unwrap_or(UNKNOWN),
        ),
    ] {
        values[measure as usize] = value;
    }
    values
}

/// The writer of the groups of one ring.
#[derive(Debug)]
pub struct GroupWriter {
    memory: Arc<Memory>,
    ring: usize,
    parts: Parts,
    folds: Vec<WrittenFold>,
}

/// The parts of the memory that a ring has: the first words, and sizes.
#[derive(Debug)]
struct Parts {
    windows: usize,
    state: usize,
    cells: usize,
    blocks: usize,
    cell_words: usize,
    tables: GroupTables,
}

/// A fold, as it is computed.
#[derive(Debug)]
struct WrittenFold {
    interval_ns: u64,
    by_disk: bool,
    by_op: bool,
    calls: Vec<Call>,
}

/// What a call changes, once all its memory is allocated: the first word of a block, a bin, an
/// offset.
type Addition = Option<(usize, usize, u64)>;

impl WrittenFold {
    fn new(word: &FoldWord) -> WrittenFold {
        WrittenFold {
            interval_ns: word.interval_ns,
            by_disk: word.by_disk,
            by_op: word.by_op,
            calls: word.kernel_calls(),
        }
    }

    fn key(&self, number: usize, window: usize, record: &Record) -> u64 {
        let disk = if self.by_disk {
            u64::from(record.disk)
        } else {
            0
        };
        let op = if self.by_op { record.op as u64 } else { 0 };
        list_bits(number, window) | disk | op << cell::OP_SHIFT
    }
}

impl GroupWriter {
    /// The writer of the groups of ring `ring`; `None` without groups.
    pub fn new(memory: Arc<Memory>, ring: usize, folds: &[FoldWord]) -> Option<GroupWriter> {
        let layout = memory.layout();
        let tables = layout.groups()?;
        let folds: Vec<WrittenFold> = folds.iter().map(WrittenFold::new).collect();
        let parts = Parts {
            windows: layout.group_windows().start,
            state: layout.group_cpus().start + ring * CPU_BYTES / 8,
            cells: layout.group_cells(tables, ring).start,
            blocks: layout.group_blocks(tables, ring).start,
            cell_words: cell_bytes(tables.moments as usize) / 8,
            tables,
        };
        (!folds.is_empty()).then_some(GroupWriter {
            memory,
            ring,
            parts,
            folds,
        })
    }

    /// Adds a response to its group in each of `folds`, a bit each; returns those that contain it.
    /// The others need a record of it.
    #[inline]
    pub fn add(&self, record: &Record, values: &Values, folds: u8) -> u8 {
        let busy = &self.state()[cpu::BUSY];
        busy.store(1, Ordering::Relaxed);
        // Before the windows are read: see `Tables::is_quiet`.
        fence(Ordering::SeqCst);
        let mut folded = 0;
        for (number, fold) in self.folds.iter().enumerate() {
            if folds >> number & 1 != 0 && self.add_to(number, fold, record, values).is_some() {
                folded |= 1 << number;
            }
        }
        busy.store(0, Ordering::Release);
        folded
    }

    /// Counts an event that no record was written of, since groups contain it.
    #[inline]
    pub fn count_unrecorded(&self) {
        add_to(&self.state()[cpu::UNRECORDED], 1);
    }

    /// Adds a response completely, or returns `None`.
    #[inline]
    fn add_to(
        &self,
        number: usize,
        fold: &WrittenFold,
        record: &Record,
        values: &Values,
    ) -> Option<()> {
        let ends = self.words::<2>(self.parts.windows + 2 * number);
        // An interval contains the times after its start, up to and including its end.
        let contains = |end: &AtomicU64| {
            end.load(Ordering::Acquire).wrapping_sub(record.ts_ns) < fold.interval_ns
        };
        let window = ends.iter().position(contains)?;
        let value = |call: &Call| values[usize::from(call.measure)];
        let is_too_large = |value: u64| value != UNKNOWN && value >= VALUE_MAX;
        if fold.calls.iter().any(|call| is_too_large(value(call))) {
            return None;
        }
        let list = &self.state()[cpu::CELLS + 2 * number + window];
        let slot = self.find_cell(fold.key(number, window, record), list)?;
        let words = self.cell(slot);
        let mut additions: [Addition; CALLS] = [None; CALLS];
        for (i, (call, addition)) in fold.calls.iter().zip(&mut additions).enumerate() {
            let value = value(call);
            if value == UNKNOWN {
                continue;
            }
            if call.keep == keep::MOMENTS {
                let sum = moments(words, call)[1].load(Ordering::Relaxed);
                overflow_free(call, sum, value)?;
            } else {
                *addition = Some(self.find_bin(i, call, value, slot)?);
            }
        }
        add_to(&words[cell::ROWS], 1);
        for (call, addition) in fold.calls.iter().zip(additions) {
            let value = value(call);
            match addition {
                Some((block, bin, offset)) => {
                    let [count, offsets] = self.words(block + block::BINS + 2 * bin);
                    add_to(count, 1);
                    add_to(offsets, offset);
                }
                None if call.keep == keep::MOMENTS && value != UNKNOWN => {
                    let [count, sum, min, max] = moments(words, call);
                    add_to(count, 1);
                    add_to(sum, value.wrapping_sub(call.bias() as u64));
                    if value < min.load(Ordering::Relaxed) {
                        min.store(value, Ordering::Relaxed);
                    }
                    if value > max.load(Ordering::Relaxed) {
                        max.store(value, Ordering::Relaxed);
                    }
                }
                None => {}
            }
        }
        Some(())
    }

    /// Words of the memory.
    #[inline]
    fn words<const N: usize>(&self, from: usize) -> &[AtomicU64; N] {
        let words = &self.memory.words()[from..from + N];
        words.try_into().expect("as many words as were sliced")
    }

    #[inline]
    fn state(&self) -> &[AtomicU64; CPU_BYTES / 8] {
        self.words(self.parts.state)
    }

    /// The words of the ring's cell number `slot`.
    #[inline]
    fn cell(&self, slot: usize) -> &[AtomicU64] {
        let from = self.parts.cells + slot * self.parts.cell_words;
        &self.memory.words()[from..from + self.parts.cell_words]
    }

    /// The cell with this key, allocated if there is none; `None` if there is no room.
    #[inline]
    fn find_cell(&self, key: u64, list: &AtomicU64) -> Option<usize> {
        let cells = self.parts.tables.cells as usize;
        let home = hash(key);
        for probe in 0..PROBES {
            let slot = home.wrapping_add(probe) & (cells - 1);
            let words = self.cell(slot);
            let found = words[cell::KEY].load(Ordering::Acquire);
            if found == key {
                return Some(slot);
            }
            if found == 0 {
                let number = (self.ring * cells + slot + 1) as u64;
                for word in &words[cell::KEY + 1..cell::NEXT_AND_BLOCKS] {
                    word.store(0, Ordering::Relaxed);
                }
                let next = list.load(Ordering::Relaxed) & u64::from(u32::MAX);
                words[cell::NEXT_AND_BLOCKS].store(next, Ordering::Relaxed);
                for moments in words[cell::MOMENTS..].chunks_exact(MOMENTS_WORDS) {
                    for (word, value) in moments.iter().zip([0, 0, u64::MAX, 0]) {
                        word.store(value, Ordering::Relaxed);
                    }
                }
                words[cell::KEY].store(key, Ordering::Relaxed);
                list.store(number, Ordering::Release);
                return Some(slot);
            }
        }
        None
    }

    /// The bin to which a value of call number `number` is added.
    #[inline]
    fn find_bin(
        &self,
        number: usize,
        call: &Call,
        value: u64,
        cell: usize,
    ) -> Option<(usize, usize, u64)> {
        let value = value as i64 - call.bias();
        let (sign, bin, offset) = match call.keep {
            keep::LIMITS => (0, call.limits.partition_point(|limit| *limit < value), 0),
            _ => {
                let sign = if value < 0 { block::NEGATIVE } else { 0 };
                let (bin, offset) = log_linear_bin(value.unsigned_abs());
                (sign, bin, offset)
            }
        };
        let cells = self.parts.tables.cells as usize;
        let cell_number = (self.ring * cells + cell + 1) as u64;
        let call = (number as u64) << block::CALL_SHIFT;
        let key = cell_number << 32 | call | u64::from(sign) | (bin / BINS) as u64;
        Some((self.find_block(key, cell)?, bin % BINS, offset))
    }

    /// The first word of the block with this key, allocated if there is none.
    #[inline]
    fn find_block(&self, key: u64, cell: usize) -> Option<usize> {
        const WORDS: usize = BLOCK_BYTES / 8;
        let blocks = self.parts.tables.blocks as usize;
        let home = hash(key);
        for probe in 0..PROBES {
            let slot = home.wrapping_add(probe) & (blocks - 1);
            let from = self.parts.blocks + slot * WORDS;
            let words: &[AtomicU64; WORDS] = self.words(from);
            let found = words[block::KEY].load(Ordering::Acquire);
            if found == key {
                return Some(from);
            }
            if found == 0 {
                let list = &self.cell(cell)[cell::NEXT_AND_BLOCKS];
                let before = list.load(Ordering::Relaxed);
                for word in &words[block::BINS..] {
                    word.store(0, Ordering::Relaxed);
                }
                words[block::NEXT].store(before >> 32, Ordering::Relaxed);
                words[block::KEY].store(key, Ordering::Relaxed);
                let number = (self.ring * blocks + slot + 1) as u64;
                let next = before & u64::from(u32::MAX);
                list.store(next | number << 32, Ordering::Relaxed);
                return Some(from);
            }
        }
        None
    }
}

/// The moments of a call in the words of a cell: count, sum, minimum, maximum.
fn moments<'a>(words: &'a [AtomicU64], call: &Call) -> &'a [AtomicU64; MOMENTS_WORDS] {
    let first = cell::MOMENTS + usize::from(call.place) * MOMENTS_WORDS;
    let words = &words[first..][..MOMENTS_WORDS];
    words.try_into().expect("as many words as were sliced")
}

/// `None` if the sum of the values of a call would exceed 64 bits, of which signed ones need one.
fn overflow_free(call: &Call, sum: u64, value: u64) -> Option<()> {
    if call.is_signed {
        (sum as i64)
            .checked_add(value as i64 - call.bias())
            .map(drop)
    } else {
        sum.checked_add(value).map(drop)
    }
}

/// The bin of a value, as `weir_sketch::LogLinear` numbers them, and its offset in it.
fn log_linear_bin(value: u64) -> (usize, u64) {
    let shift = (value | 1 << LOG_BITS).ilog2() - LOG_BITS;
    let bin = (u64::from(shift) << LOG_BITS) + (value >> shift);
    (bin as usize, value & ((1 << shift) - 1))
}

fn hash(key: u64) -> usize {
    ((key ^ key >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
}

/// Adds to a word of which this thread is the only writer.
fn add_to(word: &AtomicU64, more: u64) {
    let sum = word.load(Ordering::Relaxed).wrapping_add(more);
    word.store(sum, Ordering::Relaxed);
}
