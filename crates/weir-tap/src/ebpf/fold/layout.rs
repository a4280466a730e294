//! Data structures shared with the kernel side of a fold, as defined in `fold.h`.

use serde::{Deserialize, Serialize};

/// Maximum number of folds.
pub const FOLDS: usize = 2;

/// Maximum number of values of each group.
pub const CALLS: usize = 16;

/// Maximum number of limits of one histogram.
pub const LIMITS: usize = 1 << 9;

/// Number of limits of all histograms together, each with a power of two of them.
pub const LIMITS_ALL: usize = 1024;

/// Bins per power of two, as a power of two.
pub const LOG_BITS: u32 = 7;

/// Bins of a block.
pub const BINS: usize = 16;

/// Greater values are delivered as rows, so that a sum cannot overflow.
pub const VALUE_MAX: u64 = 1 << 40;

/// Added to signed values, but not to their sums: they are then unsigned and below twice this.
pub const BIAS: i64 = 1 << 39;

/// Bytes of `struct fold_window`.
pub const WINDOW_BYTES: usize = 16;

/// Bytes of `struct fold_cpu`.
pub const CPU_BYTES: usize = 448;

/// Bytes of `struct fold_block`.
pub const BLOCK_BYTES: usize = 272;

/// Words of `struct moments`.
pub const MOMENTS_WORDS: usize = 4;

/// Bytes of a `struct fold_cell` with this number of moments.
pub const fn cell_bytes(moments: usize) -> usize {
    (cell::MOMENTS + moments * MOMENTS_WORDS) * 8
}

/// Positions in `struct fold_cpu`, in 8-byte words.
pub mod cpu {
    /// Nonzero while a program updates the groups.
    pub const BUSY: usize = 0;
    /// Events for which no record was written.
    pub const UNRECORDED: usize = 1;
    /// The last cell in use, + 1, of each fold and window.
    pub const CELLS: usize = 4;
}

/// Positions in `struct fold_cell`, in 8-byte words.
pub mod cell {
    /// The key.
    pub const KEY: usize = 0;
    /// Words of the key.
    pub const KEY_WORDS: usize = 5;
    /// The bits of the first word of the key that the fold sets; the others are those of the table.
    pub const KEY_BITS: u64 = (1 << 48) - 1;
    /// Position of the fold's number in the first word.
    pub const FOLD_SHIFT: u32 = 48;
    /// Position of the window's number.
    pub const WINDOW_SHIFT: u32 = 56;
    /// Set in the first word of a cell that is in use.
    pub const TAKEN: u64 = 1 << 63;
    /// Number of events.
    pub const ROWS: usize = 5;
    /// The next cell, + 1, in the lower half, and the first block, + 1, in the upper one.
    pub const NEXT_AND_BLOCKS: usize = 6;
    /// The first of the moments.
    pub const MOMENTS: usize = 8;
    /// Position of the operation in the key.
    pub const OP_SHIFT: u32 = 32;
    /// Set if a kernel thread submitted the request.
    pub const KERNEL: u64 = 1 << 40;
    /// Position of the owners in the second word of the key.
    pub const OWNERS_SHIFT: u32 = 32;
}

/// Positions in `struct fold_block`, in 8-byte words.
pub mod block {
    /// The key.
    pub const KEY: usize = 0;
    /// The next block, + 1.
    pub const NEXT: usize = 1;
    /// The first bin: count, and sum of offsets.
    pub const BINS: usize = 2;
    /// Position of the call in the key.
    pub const CALL_SHIFT: u32 = 24;
    /// Set in the key for bins of negative values.
    pub const NEGATIVE: u32 = 1 << 23;
}

/// The bits that the table sets in the first word of the keys of a fold's window.
pub const fn list_bits(fold: usize, window: usize) -> u64 {
    cell::TAKEN | (fold as u64) << cell::FOLD_SHIFT | (window as u64) << cell::WINDOW_SHIFT
}

/// `enum fold_key`.
pub mod key {
    /// `op`
    pub const OP: u32 = 1;
    /// `pdisk`
    pub const DEVICE: u32 = 2;
    /// `pid`
    pub const PID: u32 = 4;
    /// `comm`
    pub const COMM: u32 = 8;
    /// `cgroup`
    pub const CGROUP: u32 = 16;
    /// Set if a kernel thread submitted the request.
    pub const KERNEL: u32 = 32;
    /// The virtual disks at its sectors.
    pub const OWNERS: u32 = 64;
}

/// Number of values of a request that are aggregated.
pub const MEASURES: usize = 9;

/// `enum measure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockMeasure {
    /// `sectors`
    Sectors = 0,
    /// `bytes`
    Bytes = 1,
    /// `wait`
    Wait = 2,
    /// `service`
    Service = 3,
    /// `latency`
    Latency = 4,
    /// `merges`
    Merges = 5,
    /// `in_flight`
    InFlight = 6,
    /// `seek`
    Seek = 7,
    /// `interarrival`
    Interarrival = 8,
}

impl BlockMeasure {
    /// All measures, in their order.
    pub const ALL: [BlockMeasure; MEASURES] = [
        BlockMeasure::Sectors,
        BlockMeasure::Bytes,
        BlockMeasure::Wait,
        BlockMeasure::Service,
        BlockMeasure::Latency,
        BlockMeasure::Merges,
        BlockMeasure::InFlight,
        BlockMeasure::Seek,
        BlockMeasure::Interarrival,
    ];

    /// True if its values may be negative.
    pub fn is_signed(self) -> bool {
        self == BlockMeasure::Seek
    }
}

/// `enum keep`.
pub mod keep {
    /// Count, sum, minimum and maximum.
    pub const MOMENTS: u8 = 0;
    /// Counts by limit.
    pub const LIMITS: u8 = 1;
    /// Counts by bins of equal relative width.
    pub const LOG_LINEAR: u8 = 2;
}

/// `struct fold_call`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The measure: of block I/O, of [`BlockMeasure`].
    pub measure: u8,
    /// The aggregate, of [`keep`].
    pub keep: u8,
    /// Index of the cell's moments.
    pub place: u8,
    /// True if the kernel side adds [`BIAS`] to the values, which may be negative.
    pub is_signed: bool,
    /// Limits of a histogram by limits: ascending, at most [`LIMITS`].
    pub limits: Vec<i64>,
}

impl Call {
    /// The number of limits that it takes, with those that fill a power of two.
    fn limit_slots(&self) -> usize {
        match self.keep {
            keep::LIMITS => self.limits.len().next_power_of_two(),
            _ => 0,
        }
    }

    /// What it aggregates, of block I/O.
    ///
    /// # Panics
    /// For a measure of another stream.
    pub fn measure(&self) -> BlockMeasure {
        let found = BlockMeasure::ALL
            .into_iter()
            .find(|m| *m as u8 == self.measure);
        found.expect("a measure of block I/O")
    }

    /// Added to its values by the kernel side.
    pub fn bias(&self) -> i64 {
        if self.is_signed { BIAS } else { 0 }
    }
}

/// `struct fold`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Intervals end at its multiples.
    pub interval_ns: u64,
    /// Key columns, of [`key`].
    pub keys: u32,
    /// The demand's clauses, a bit each.
    pub clauses: u8,
    /// The flag, of `flag`, of records that were folded.
    pub flag: u8,
    /// The aggregates.
    pub calls: Vec<Call>,
}

/// `struct folding`: constants set before the programs are loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folding {
    /// The folds, at most [`FOLDS`].
    pub folds: Vec<Fold>,
    /// Cells per processor, a power of two.
    pub cells: u32,
    /// Blocks per processor, a power of two.
    pub blocks: u32,
    /// Moments in each cell.
    pub moments: u32,
}

impl Folding {
    /// The bytes of `.rodata.fold`.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOLDS * FOLD_BYTES + 24 + LIMITS_ALL * 8);
        let mut limits = Vec::with_capacity(LIMITS_ALL);
        for fold in &self.folds {
            fold.encode(&mut out, &mut limits);
        }
        out.resize(FOLDS * FOLD_BYTES, 0);
        let count = self.folds.len() as u32;
        let keys = self.folds.iter().fold(0, |all, fold| all | fold.keys);
        for word in [count, self.cells, self.blocks, self.moments, keys, 0] {
            out.extend(word.to_ne_bytes());
        }
        assert!(limits.len() <= LIMITS_ALL, "plans with more are declined");
        limits.resize(LIMITS_ALL, i64::MAX);
        out.extend(limits.iter().flat_map(|limit| limit.to_ne_bytes()));
        out
    }
}

/// Bytes of `struct fold`.
const FOLD_BYTES: usize = 16 + CALLS * 8;

impl Fold {
    /// The number of limits that its histograms take.
    pub fn limit_slots(&self) -> usize {
        self.calls.iter().map(Call::limit_slots).sum()
    }

    /// Appends its bytes to `out`, and its limits to those of all folds.
    fn encode(&self, out: &mut Vec<u8>, limits: &mut Vec<i64>) {
        let start = out.len();
        out.extend(self.interval_ns.to_ne_bytes());
        out.extend(self.keys.to_ne_bytes());
        let calls = self.calls.len() as u8;
        out.extend([self.clauses, calls, self.flag, 0]);
        for call in &self.calls {
            let slots = call.limit_slots();
            let limits_log = slots.checked_ilog2().unwrap_or(0) as u8;
            let is_signed = call.is_signed.into();
            out.extend([
                call.measure,
                call.keep,
                call.place,
                is_signed,
                limits_log,
                0,
            ]);
            let limits_from = limits.len();
            out.extend((limits_from as u16).to_ne_bytes());
            // No value in the kernel is negative, so all negative limits are equivalent to -1.
            let own = call.limits.iter();
            limits.extend(own.map(|limit| limit.saturating_add(call.bias()).max(-1)));
            limits.resize(limits_from + slots, i64::MAX);
        }
        out.resize(start + FOLD_BYTES, 0);
    }
}

const _: () = assert!(
    BlockMeasure::Interarrival as usize + 1 == MEASURES,
    "MEASURES of fold.h"
);
const _: () = assert!(FOLD_BYTES == 144, "struct fold of fold.h");
const _: () = assert!(
    (cpu::CELLS + FOLDS * 2 + 16) * 8 + CALLS * 16 == CPU_BYTES,
    "struct fold_cpu of fold.h"
);
const _: () = assert!(cell_bytes(CALLS) == 576, "struct fold_cell of fold.h");
const _: () = assert!(
    (block::BINS + 2 * BINS) * 8 == BLOCK_BYTES,
    "struct fold_block of fold.h"
);
