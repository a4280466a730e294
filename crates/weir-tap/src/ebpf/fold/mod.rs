//! [`Folds`]: groups that kernel programs compute from events, instead of writing a record for
//! each.
//!
//! The life cycle of an interval:
//! 1. Two intervals are open at a time, the current one and the next: each has a window. A request
//!    is added to its group's cell in the window that contains its completion time.
//! 2. Groups are named as they appear, while their processes and disks still exist.
//! 3. After the end of the interval its window is closed, and once no processor updates it, the
//!    groups are read and removed. The window is reopened for the interval after the next.
//! 4. When the watermark of the rows has passed the interval as well, its groups are delivered.
//!
//! A request without a window or free memory, or with unusual properties, is written as a record
//! and delivered as a row.

mod block;
mod groups;
pub mod layout;
mod naming;
mod plan;
mod tables;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use weir_model::{Folded, Nanos};

pub use self::block::{Key, Plans, keyed_plan, plan_line};
use self::groups::Groups;
pub use self::groups::Named;
use self::layout::{BLOCK_BYTES, Folding, cell_bytes, keep};
pub use self::naming::Naming;
pub use self::plan::{KernelMeasure, Plan, Selected, declined, poll_interval};
pub use self::tables::{RawKey, Tables};
use super::clock;

/// The names of groups.
pub trait NameGroups {
    /// The names of these groups of fold number `fold`.
    fn name(&mut self, fold: usize, keys: &[RawKey]) -> Vec<Named>;
}

/// All folds of a tap.
#[derive(Debug)]
pub struct Folds {
    plans: Vec<Plan>,
    windows: Vec<[Window; 2]>,
    tables: Tables,
    /// Offset from the kernel's clock to the epoch.
    epoch_offset_ns: Nanos,
    /// See [`super::LiveOptions::interval_shift_ns`].
    interval_shift_ns: Arc<AtomicI64>,
    /// Groups of complete intervals, by the interval's end on the kernel's clock.
    taken: Vec<(u64, usize, Folded)>,
    /// Events of groups that are not valid.
    discarded: u64,
}

/// An interval that is open, or about to be read.
#[derive(Debug)]
struct Window {
    /// Its end on the kernel's clock.
    end_ns: u64,
    /// The last cell of each processor whose group is named.
    seen: Vec<u64>,
    /// The groups that have appeared.
    named: HashMap<RawKey, Named>,
}

/// Number of attempts to close a window, and the pause between them, when it cannot be retried
/// later.
const CLOSE_TRIES_MAX: usize = 100;
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

/// Minimum and maximum number of cells of one processor.
const CELLS_RANGE: (usize, usize) = (16, 1 << 14);

/// Minimum and maximum number of blocks of one processor.
const BLOCKS_RANGE: (usize, usize) = (64, 1 << 15);

impl Folding {
    /// The configuration of the kernel side for these plans, with tables of about `bytes` for all
    /// processors.
    pub fn new<'a>(
        plans: impl Iterator<Item = &'a Plan>,
        bytes: usize,
        processors: u32,
    ) -> Folding {
        let folds: Vec<layout::Fold> = plans.map(|p| p.kernel.clone()).collect();
        let calls = folds.iter().map(|fold| &fold.calls);
        let moments = calls.clone().map(|calls| {
            let moments = calls.iter().filter(|c| c.keep == keep::MOMENTS);
            moments.count()
        });
        let moments = moments.max().unwrap_or(0);
        let bins = calls.flatten().any(|c| c.keep != keep::MOMENTS);
        let own = bytes / processors.max(1) as usize;
        // A group's histograms are larger than its other values.
        let (for_cells, for_blocks) = if bins {
            (own / 8, own - own / 8)
        } else {
            (own, 0)
        };
        let fit = |bytes: usize, each: usize, (least, most): (usize, usize)| {
            1 << (bytes / each).clamp(least, most).ilog2()
        };
        Folding {
            cells: fit(for_cells, cell_bytes(moments), CELLS_RANGE),
            blocks: match bins {
                true => fit(for_blocks, BLOCK_BYTES, BLOCKS_RANGE),
                false => 1,
            },
            moments: moments as u32,
            folds,
        }
    }
}

impl Folds {
    /// Opens the windows of these plans. Until then, programs that run deliver rows.
    pub fn begin(
        plans: Vec<Plan>,
        tables: Tables,
        epoch_offset_ns: Nanos,
        interval_shift_ns: Arc<AtomicI64>,
    ) -> Folds {
        let mut folds = Folds {
            windows: Vec::new(),
            plans: Vec::new(),
            tables,
            epoch_offset_ns,
            interval_shift_ns,
            taken: Vec::new(),
            discarded: 0,
        };
        let now_ns = clock::monotonic_ns();
        for (fold, plan) in plans.into_iter().enumerate() {
            let first = folds.end_of(plan.interval, now_ns);
            let ends = [first, first + plan.interval as u64];
            folds.windows.push(ends.map(|end_ns| folds.window(end_ns)));
            folds.plans.push(plan);
            for (window, end_ns) in ends.into_iter().enumerate() {
                folds.tables.open(fold, window, end_ns);
            }
        }
        folds
    }

    /// Reads the intervals that are complete at `settled_ns`, and names new groups. No heartbeat
    /// may exceed the returned time.
    pub fn advance(&mut self, settled_ns: u64, naming: &mut impl NameGroups) -> u64 {
        let mut limit_ns = settled_ns;
        for fold in 0..self.plans.len() {
            for window in [0, 1] {
                self.name_new(fold, window, naming);
            }
            // The earlier one first, then the other one if that is complete as well.
            for _ in 0..2 {
                let window = self.earlier(fold);
                let end_ns = self.windows[fold][window].end_ns;
                if end_ns > settled_ns {
                    break;
                }
                if !self.tables.close(fold, window) {
                    limit_ns = limit_ns.min(end_ns - 1);
                    break;
                }
                self.take(fold, window, naming);
            }
        }
        limit_ns
    }

    /// The groups of the incomplete intervals. A window that programs are still updating keeps its
    /// groups.
    pub fn close(&mut self, naming: &mut impl NameGroups) -> Vec<(usize, Folded)> {
        for fold in 0..self.plans.len() {
            for window in [0, 1] {
                let mut tries = 0..CLOSE_TRIES_MAX;
                while !self.tables.close(fold, window) && tries.next().is_some() {
                    std::thread::sleep(CLOSE_PAUSE);
                }
                if !tries.is_empty() {
                    self.take(fold, window, naming);
                    // The writers may still run, and no client reads what they add.
                    self.tables.open(fold, window, 0);
                }
            }
        }
        self.over(u64::MAX)
    }

    /// The groups of intervals that end by `watermark_ns`, by demand.
    pub fn over(&mut self, watermark_ns: u64) -> Vec<(usize, Folded)> {
        let is_over = |(end_ns, ..): &(u64, usize, Folded)| *end_ns <= watermark_ns;
        let (over, rest) = self.taken.drain(..).partition(is_over);
        self.taken = rest;
        let over: Vec<(u64, usize, Folded)> = over;
        over.into_iter()
            .map(|(_, demand, folded)| (demand, folded))
            .collect()
    }

    /// True if each processor was observed not to be folding, since this was called.
    pub fn is_quiet(&self) -> bool {
        self.tables.is_quiet()
    }

    /// As [`Folds::close`], after the writers have ended, perhaps during an update.
    pub fn finish(&mut self, naming: &mut impl NameGroups) -> Vec<(usize, Folded)> {
        self.tables.writers_ended();
        self.close(naming)
    }

    /// The number of events in groups that were discarded because they are not valid.
    pub fn discarded(&self) -> i64 {
        i64::try_from(self.discarded).unwrap_or(i64::MAX)
    }

    /// Events that groups contain and for which no record was written.
    pub fn unrecorded(&self) -> i64 {
        let folded = self.tables.unrecorded().saturating_sub(self.discarded);
        i64::try_from(folded).unwrap_or(i64::MAX)
    }

    /// The window of the earlier interval.
    fn earlier(&self, fold: usize) -> usize {
        let [first, second] = &self.windows[fold];
        usize::from(second.end_ns < first.end_ns)
    }

    fn name_new(&mut self, fold: usize, window: usize, naming: &mut impl NameGroups) {
        let open = &mut self.windows[fold][window];
        let mut keys = self.tables.new_keys(fold, window, &mut open.seen);
        keys.retain(|key| !open.named.contains_key(key));
        // There are no more groups than cells, unless another process writes keys.
        keys.truncate(self.tables.cell_count().saturating_sub(open.named.len()));
        if !keys.is_empty() {
            let named = naming.name(fold, &keys);
            open.named.extend(keys.into_iter().zip(named));
        }
    }

    /// Reads and removes the groups of a window that is closed and not being updated, and reopens
    /// it.
    fn take(&mut self, fold: usize, window: usize, naming: &mut impl NameGroups) {
        self.name_new(fold, window, naming);
        let interval = self.plans[fold].interval;
        let other_ns = self.windows[fold][1 - window].end_ns;
        // The interval after the other one. Requests without a window meanwhile were delivered as
        // rows.
        let within_ns = clock::monotonic_ns().max(other_ns + interval as u64 / 2);
        let next_ns = self.end_of(interval, within_ns);
        let next = self.window(next_ns);
        let over = std::mem::replace(&mut self.windows[fold][window], next);
        let plan = &self.plans[fold];
        let mut groups = Groups::default();
        let (taken, discarded) = self.tables.take(fold, window, &plan.kernel.calls);
        self.discarded = self.discarded.saturating_add(discarded);
        for group in taken {
            match over.named.get(&group.key) {
                Some(named) => groups.add(plan, named, &group),
                // A closed window has no new groups, unless another process has changed it.
                None => self.discarded = self.discarded.saturating_add(group.rows),
            }
        }
        self.tables.open(fold, window, next_ns);
        let end = over.end_ns as Nanos + self.epoch_offset_ns;
        if let Some(folded) = groups.folded(plan, end) {
            self.taken.push((over.end_ns, plan.demand, folded));
        }
    }

    fn window(&self, end_ns: u64) -> Window {
        Window {
            end_ns,
            seen: vec![0; self.tables.processors],
            named: HashMap::new(),
        }
    }

    /// The end of the interval that contains a time of the kernel's clock.
    fn end_of(&self, interval: Nanos, at_ns: u64) -> u64 {
        let offset_ns = self.epoch_offset_ns + self.interval_shift_ns.load(Ordering::Relaxed);
        let epoch = at_ns as Nanos + offset_ns;
        let end = (epoch + interval - 1).div_euclid(interval) * interval;
        (end - offset_ns) as u64
    }
}
