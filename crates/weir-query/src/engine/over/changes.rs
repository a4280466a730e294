//! [`Changes`]: the changes of the results of window functions.

use weir_model::{Batch, Column, ColumnBuilder};

use super::partition::Shown;
use crate::plan::OverCall;
use crate::synopsis::slots::Slots;

/// Changes of the results, in the order of their instants.
pub(super) struct Changes {
    ts: Vec<i64>,
    slots: Vec<u32>,
    weights: Vec<i64>,
    /// Of each call.
    results: Vec<ColumnBuilder>,
}

/// The rows that were inserted into a partition and retracted from it at one instant, by slot.
#[derive(Default)]
pub(super) struct Exchanged {
    pub inserted: Vec<u32>,
    pub retracted: Vec<u32>,
}

impl Exchanged {
    /// Sorts both, as [`Changes::add`] needs them.
    pub fn sort(&mut self) {
        self.inserted.sort_unstable();
        self.retracted.sort_unstable();
    }
}

impl Changes {
    /// No changes of the results of these calls.
    pub fn of(calls: &[OverCall]) -> Changes {
        let results = calls.iter().map(|call| call.function.returns().0);
        Changes {
            ts: Vec::new(),
            slots: Vec::new(),
            weights: Vec::new(),
            results: results.map(|ty| ColumnBuilder::new(ty, 0)).collect(),
        }
    }

    /// Adds the changes from `old` to `new` at an instant. Both have the same rows in the same
    /// order, except for those that were exchanged.
    pub fn add(&mut self, ts: i64, old: &Shown, new: &Shown, exchanged: &Exchanged) {
        let was_inserted = |slot| exchanged.inserted.binary_search(&slot).is_ok();
        let was_retracted = |slot| exchanged.retracted.binary_search(&slot).is_ok();
        let same = |a: usize, b: usize| {
            let mut pairs = old.results.iter().zip(&new.results);
            pairs.all(|(old, new)| old.value(a) == new.value(b))
        };
        let mut kept = old.runs().filter(|(slot, ..)| !was_retracted(*slot));
        for (slot, first, len) in new.runs() {
            let (old_first, old_len) = match was_inserted(slot) {
                true => (0, 0),
                false => {
                    let (old_slot, first, len) = kept.next().expect("it was there before");
                    assert_eq!(old_slot, slot, "rows keep their order");
                    (first, len)
                }
            };
            for copy in 0..len.max(old_len) {
                let (old_at, new_at) = (old_first + copy, first + copy);
                if copy < len.min(old_len) && same(old_at, new_at) {
                    continue;
                }
                if copy < old_len {
                    self.push(ts, slot, -1, &old.results, old_at);
                }
                if copy < len {
                    self.push(ts, slot, 1, &new.results, new_at);
                }
            }
        }
        assert!(kept.next().is_none(), "rows leave by retraction");
        for (slot, first, len) in old.runs().filter(|(slot, ..)| was_retracted(*slot)) {
            (first..first + len).for_each(|at| self.push(ts, slot, -1, &old.results, at));
        }
    }

    fn push(&mut self, ts: i64, slot: u32, weight: i64, results: &[Column], at: usize) {
        self.ts.push(ts);
        self.slots.push(slot);
        self.weights.push(weight);
        for (builder, result) in self.results.iter_mut().zip(results) {
            builder.push(result.value(at));
        }
    }

    /// The changes with the columns of their rows, if there are any.
    pub fn finish(self, rows: &Slots) -> Option<Batch> {
        if self.slots.is_empty() {
            return None;
        }
        let columns = rows.gather(&self.slots).into_iter();
        let results = self.results.into_iter().map(|mut builder| builder.finish());
        Some(Batch {
            ts: self.ts.into(),
            columns: columns.chain(results).collect(),
            weights: Some(self.weights.into()),
        })
    }
}
