//! [`Tables`]: the cells and blocks in which kernel programs store groups, read and freed here.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use libbpf_rs::OpenMapMut;

use super::layout::{
    self, BINS, CALLS, Call, FOLDS, Folding, LOG_BITS, MOMENTS_WORDS, VALUE_MAX, block, cell, cpu,
    keep, list_bits,
};
use crate::shared::{Shared, SharedPart};

/// Maximum number of checks of a busy processor before it is retried later. A program ends much
/// sooner.
const LOOKS_MAX: usize = 1000;

/// Maximum number of events of a group: at 100 million per second, those of the longest interval.
const ROWS_MAX: u64 = 1 << 36;

/// The tables of all processors.
#[derive(Debug)]
pub struct Tables {
    /// The open intervals.
    pub windows: SharedPart,
    /// The state of each processor.
    pub cpus: SharedPart,
    /// Groups.
    pub cells: SharedPart,
    /// Bins.
    pub blocks: SharedPart,
    /// Sizes of cells and blocks.
    pub folding: Folding,
    /// Possible processors, including offline ones.
    pub processors: usize,
}

/// The key of a group in the kernel. Words that the fold does not use are 0.
pub type RawKey = [u64; cell::KEY_WORDS];

/// The values of a group from one processor.
#[derive(Clone, Debug)]
pub struct Group {
    /// The key.
    pub key: RawKey,
    /// Number of events.
    pub rows: u64,
    /// Count, sum, minimum and maximum, by index.
    pub moments: Vec<[u64; MOMENTS_WORDS]>,
    /// Bins that are not empty: call, bin, count, sum of offsets. The bins of negative values have
    /// negative numbers.
    pub bins: Vec<(usize, i32, u64, u64)>,
}

impl Group {
    /// False for values that no events have: another process has written them.
    fn is_valid(&self, calls: &[Call]) -> bool {
        let mut in_bins = [0_u64; CALLS];
        let are_bins = self.bins.iter().all(|(call, bin, count, offsets)| {
            let Some(call_of_fold) = calls.get(*call) else {
                return false;
            };
            in_bins[*call] = in_bins[*call].saturating_add(*count);
            is_bin(call_of_fold, *bin, *count, *offsets)
        });
        let mut moments = calls.iter().filter(|call| call.keep == keep::MOMENTS);
        are_bins
            && self.rows <= ROWS_MAX
            && in_bins.iter().all(|count| *count <= self.rows)
            && moments.all(|call| {
                let moments = self.moments.get(usize::from(call.place));
                moments.is_some_and(|moments| are_moments(call, moments, self.rows))
            })
    }
}

fn are_moments(call: &Call, moments: &[u64; MOMENTS_WORDS], rows: u64) -> bool {
    let [count, sum, min, max] = *moments;
    if count == 0 {
        return true;
    }
    let sum = match call.is_signed {
        true => i128::from(sum as i64),
        false => i128::from(sum),
    };
    let total = |value: u64| i128::from(count) * (i128::from(value) - i128::from(call.bias()));
    count <= rows && min <= max && max < VALUE_MAX && (total(min)..=total(max)).contains(&sum)
}

fn is_bin(call: &Call, bin: i32, count: u64, offsets: u64) -> bool {
    if call.keep == keep::LIMITS {
        return usize::try_from(bin).is_ok_and(|bin| bin <= call.limits.len()) && offsets == 0;
    }
    let bins_of_power = 1_u32 << LOG_BITS;
    let shift = (bin.unsigned_abs() / bins_of_power).saturating_sub(1);
    let offset_max = (1_u64 << shift.min(VALUE_MAX.ilog2())) - 1;
    call.keep == keep::LOG_LINEAR
        && shift < VALUE_MAX.ilog2()
        && offsets <= count.saturating_mul(offset_max)
}

impl Folding {
    /// Sets the size or the content of a table of an object, if it is one of the folds'. False if
    /// it is another table.
    pub fn size(
        &self,
        name: &str,
        table: &mut OpenMapMut<'_>,
        processors: u32,
    ) -> libbpf_rs::Result<bool> {
        let entries = match name {
            ".rodata.fold" => {
                table.set_initial_value(&self.bytes())?;
                return Ok(true);
            }
            _ if self.folds.is_empty() => return Ok(false),
            "fold_windows" => FOLDS as u32,
            "fold_cpus" => processors,
            "fold_cells" => {
                table.set_value_size(layout::cell_bytes(self.moments as usize) as u32)?;
                processors * self.cells
            }
            "fold_blocks" => processors * self.blocks,
            _ => return Ok(false),
        };
        table.set_max_entries(entries)?;
        Ok(true)
    }
}

impl Tables {
    /// The tables of programs that fold, mapped by `map`: by name, with the size of a value and the
    /// number of values.
    pub fn map<E>(
        map: &impl Fn(&str, usize, usize) -> Result<Shared, E>,
        folding: &Folding,
        processors: usize,
    ) -> Result<Tables, E> {
        let cell_bytes = layout::cell_bytes(folding.moments as usize);
        let all = |each: u32| processors * each as usize;
        Ok(Tables {
            windows: map("fold_windows", layout::WINDOW_BYTES, FOLDS)?.into(),
            cpus: map("fold_cpus", layout::CPU_BYTES, processors)?.into(),
            cells: map("fold_cells", cell_bytes, all(folding.cells))?.into(),
            blocks: map("fold_blocks", layout::BLOCK_BYTES, all(folding.blocks))?.into(),
            folding: folding.clone(),
            processors,
        })
    }

    /// Opens a window for events up to and including `end_ns` of the monotonic clock.
    pub fn open(&self, fold: usize, window: usize, end_ns: u64) {
        self.windows.words()[fold * 2 + window].store(end_ns, Ordering::Release);
    }

    /// Closes a window; true if no program is still updating it.
    pub fn close(&self, fold: usize, window: usize) -> bool {
        self.windows.words()[fold * 2 + window].store(0, Ordering::Relaxed);
        self.is_quiet()
    }

    /// True if each processor was observed not to be busy after the stores before this call: a
    /// program that becomes busy later sees these.
    pub fn is_quiet(&self) -> bool {
        // Before the marks are read. The programs set theirs, with an equally strong barrier,
        // before they check which window is open: at least one side sees the other.
        fence(Ordering::SeqCst);
        (0..self.processors).all(|cpu| self.is_quiet_on(cpu))
    }

    fn is_quiet_on(&self, cpu: usize) -> bool {
        let busy = self.state(cpu, cpu::BUSY);
        for _ in 0..LOOKS_MAX {
            if busy.load(Ordering::Acquire) == 0 {
                return true;
            }
            hint::spin_loop();
        }
        false
    }

    /// Events for which no record was written.
    pub fn unrecorded(&self) -> u64 {
        let of = |cpu| self.state(cpu, cpu::UNRECORDED).load(Ordering::Relaxed);
        (0..self.processors).map(of).fold(0, u64::saturating_add)
    }

    /// The keys of the cells that were allocated since `seen` was the last one of each processor,
    /// which is updated.
    pub fn new_keys(&self, fold: usize, window: usize, seen: &mut [u64]) -> Vec<RawKey> {
        let mut keys = Vec::new();
        for (cpu, seen) in seen.iter_mut().enumerate() {
            let last = self.last_cell(cpu, fold, window).load(Ordering::Acquire);
            let cells = self.cells_from(last, *seen, list_bits(fold, window));
            keys.extend(cells.map(|at| self.key(at)));
            *seen = last;
        }
        keys
    }

    /// Reads and removes the groups of a window that is closed and not being updated. `calls` are
    /// those of the fold. Returns the groups, and the events of invalid ones, which are discarded.
    pub fn take(&self, fold: usize, window: usize, calls: &[Call]) -> (Vec<Group>, u64) {
        let mut groups = Vec::new();
        for cpu in 0..self.processors {
            let last = self.last_cell(cpu, fold, window);
            let newest = last.load(Ordering::Acquire);
            let mut cells: Vec<usize> = self
                .cells_from(newest, 0, list_bits(fold, window))
                .collect();
            // Another process may have made the list a circle.
            cells.sort_unstable();
            cells.dedup();
            groups.extend(cells.iter().map(|at| self.group(*at)));
            last.store(0, Ordering::Release);
            // A program that finds the key cleared may reuse the cell, and initializes it.
            let first_word = |at: &usize| &self.cell(*at)[cell::KEY];
            cells
                .iter()
                .for_each(|at| first_word(at).store(0, Ordering::Release));
        }
        let (valid, invalid): (Vec<Group>, Vec<Group>) =
            groups.into_iter().partition(|group| group.is_valid(calls));
        let discarded = invalid.iter().map(|group| group.rows.clamp(1, ROWS_MAX));
        (valid, discarded.fold(0, u64::saturating_add))
    }

    /// The cells from `last` up to, and excluding, `seen`: both positions + 1, where 0 is none.
    /// They have these bits in their keys, unless another process has written to them.
    fn cells_from(&self, last: u64, seen: u64, bits: u64) -> impl Iterator<Item = usize> {
        let cells = self.cell_count();
        let place = move |number| place(number).filter(|at| *at < cells);
        let next = move |at: &usize| {
            let word = self.cell(*at)[cell::NEXT_AND_BLOCKS].load(Ordering::Relaxed);
            place(word & 0xffff_ffff)
        };
        let all = std::iter::successors(place(last), next);
        let is_listed = move |at: &usize| {
            self.cell(*at)[cell::KEY].load(Ordering::Relaxed) & !cell::KEY_BITS == bits
        };
        let some = all.take_while(move |at| Some(*at) != place(seen) && is_listed(at));
        some.take(self.folding.cells as usize)
    }

    fn key(&self, at: usize) -> RawKey {
        let words = self.cell(at);
        let word = |i: usize| words[cell::KEY + i].load(Ordering::Relaxed);
        let mut key: RawKey = std::array::from_fn(word);
        key[0] &= cell::KEY_BITS;
        key
    }

    fn group(&self, at: usize) -> Group {
        let words = self.cell(at);
        let word = |i: usize| words[i].load(Ordering::Relaxed);
        let moments = 0..self.folding.moments as usize;
        let moments = moments.map(|place| {
            let first = cell::MOMENTS + place * MOMENTS_WORDS;
            std::array::from_fn(|i| word(first + i))
        });
        let mut bins = Vec::new();
        let mut block = word(cell::NEXT_AND_BLOCKS) >> 32;
        let mut left = self.folding.blocks;
        let blocks = self.processors as u64 * u64::from(self.folding.blocks);
        while (1..=blocks).contains(&block) && left > 0 {
            block = self.take_block(block as usize - 1, at, &mut bins);
            left -= 1;
        }
        Group {
            key: self.key(at),
            rows: word(cell::ROWS),
            moments: moments.collect(),
            bins,
        }
    }

    /// Reads a block of a cell, frees it, and returns the next one, + 1. Its group's cell is still
    /// in use, so no other program can look for the block yet.
    fn take_block(&self, at: usize, cell: usize, bins: &mut Vec<(usize, i32, u64, u64)>) -> u64 {
        const WORDS: usize = layout::BLOCK_BYTES / 8;
        let words = &self.blocks.words()[at * WORDS..][..WORDS];
        let word = |i: usize| words[i].load(Ordering::Relaxed);
        if word(block::KEY) >> 32 != cell as u64 + 1 {
            // Another process has written to the list.
            return 0;
        }
        let key = word(block::KEY) as u32;
        let call = (key >> block::CALL_SHIFT) as usize;
        let first = (key & (block::NEGATIVE - 1)) * BINS as u32;
        let sign = if key & block::NEGATIVE == 0 { 1 } else { -1 };
        for i in 0..BINS {
            let (count, offsets) = (word(block::BINS + 2 * i), word(block::BINS + 2 * i + 1));
            if count != 0 {
                bins.push((call, sign * (first as i32 + i as i32), count, offsets));
            }
        }
        let next = word(block::NEXT);
        words[block::KEY].store(0, Ordering::Release);
        next
    }

    /// The number of cells.
    pub fn cell_count(&self) -> usize {
        self.processors * self.folding.cells as usize
    }

    /// Registers that the writers have ended: none of them is busy any more.
    pub fn writers_ended(&self) {
        (0..self.processors).for_each(|cpu| self.state(cpu, cpu::BUSY).store(0, Ordering::Relaxed));
    }

    fn state(&self, cpu: usize, word: usize) -> &AtomicU64 {
        &self.cpus.words()[cpu * layout::CPU_BYTES / 8 + word]
    }

    fn last_cell(&self, cpu: usize, fold: usize, window: usize) -> &AtomicU64 {
        debug_assert!(fold < FOLDS && window < 2, "as the tables are laid out");
        self.state(cpu, cpu::CELLS + fold * 2 + window)
    }

    fn cell(&self, at: usize) -> &[AtomicU64] {
        let words = layout::cell_bytes(self.folding.moments as usize) / 8;
        &self.cells.words()[at * words..][..words]
    }
}

/// The position that a number + 1 stands for; 0 is none.
fn place(number: u64) -> Option<usize> {
    number.checked_sub(1).map(|at| at as usize)
}
