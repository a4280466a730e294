//! Window functions: each row of a relation with values computed from its partition.
//!
//! The rows of a partition are kept in order. At each instant that changes it, results are computed
//! again and compared with those emitted before; rows whose results are unchanged are not emitted.
//!
//! Results that depend on a known number of rows before and after ([`Reach`]: `lag`, `lead`, frames
//! of ROWS) are computed for the rows around the changed ones only, once as they were and once as
//! they are. All others are computed for the whole partition, which takes time in proportion to its
//! rows at each such instant.

mod frame;
mod partition;
mod reach;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_model::{Batch, Column, Schema, Type};

use self::frame::PartitionRows;
use self::partition::{Entry, Partition, Shown, Stretch};
use self::reach::Reach;
use super::sort_key::{SortKey, sort_key};
use crate::eval::{Rows, eval_all};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::plan::{OverCall, Partitioning};
use crate::synopsis::gather::{concat, concat_batches, take_of_two, whole_instants};
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::slots::Slots;
use crate::synopsis::table::KeyTable;

/// The rows of a relation with the results of window functions.
pub(super) struct Over {
    by: Partitioning,
    calls: Vec<OverCall>,
    /// Of all calls; `None` if a result depends on the whole partition.
    reach: Option<Reach>,
    packer: KeyPacker,
    /// The number of each partition.
    numbers: KeyTable,
    partitions: Vec<Partition>,
    rows: Slots,
    /// Of all partitions.
    bytes: usize,
}

/// Bytes of a row beside those of its sort key and its columns.
const ROW_BYTES: usize = 80;

/// Changes of the result: slots, weights, and positions among the old results and then the new.
#[derive(Default)]
struct Changes {
    slots: Vec<u32>,
    weights: Vec<i64>,
    results: Vec<u32>,
}

impl Changes {
    fn push(&mut self, slot: u32, weight: i64, result: usize) {
        self.slots.push(slot);
        self.weights.push(weight);
        self.results.push(result as u32);
    }

    /// The changes from `old` to `new`.
    fn between(old: &Shown, new: &Shown) -> Changes {
        let mut changes = Changes::default();
        let mut before: HashMap<u32, (usize, usize)> = HashMap::new();
        before.extend(old.runs().map(|(slot, first, len)| (slot, (first, len))));
        let same = |a: usize, b: usize| {
            let mut pairs = old.results.iter().zip(&new.results);
            pairs.all(|(old, new)| old.value(a) == new.value(b))
        };
        for (slot, first, len) in new.runs() {
            let (old_first, old_len) = before.remove(&slot).unwrap_or_default();
            for copy in 0..len.max(old_len) {
                let (old_at, new_at) = (old_first + copy, first + copy);
                if copy < len.min(old_len) && same(old_at, new_at) {
                    continue;
                }
                if copy < old_len {
                    changes.push(slot, -1, old_at);
                }
                if copy < len {
                    changes.push(slot, 1, old.slots.len() + new_at);
                }
            }
        }
        for (slot, first, len) in old.runs().filter(|(slot, ..)| before.contains_key(slot)) {
            (first..first + len).for_each(|at| changes.push(slot, -1, at));
        }
        changes
    }
}

impl Over {
    /// The window functions over a relation of this schema.
    pub(super) fn new(by: &Partitioning, calls: &[OverCall], schema: &Schema) -> Over {
        let types: Vec<Type> = by.keys.iter().map(Expr::ty).collect();
        let packer = KeyPacker::new(&types);
        Over {
            by: by.clone(),
            calls: calls.to_vec(),
            reach: Reach::of(calls),
            numbers: KeyTable::new(packer.width()),
            packer,
            partitions: Vec::new(),
            rows: Slots::new(schema),
            bytes: 0,
        }
    }

    fn update(&mut self, batch: &Batch, out: &mut Vec<Batch>) -> Result<(), EvalError> {
        let rows = Rows {
            columns: &batch.columns,
            len: batch.len(),
        };
        let keys = eval_all(&self.by.keys, rows)?;
        let numbers = match keys.is_empty() {
            true => vec![0; batch.len()],
            false => {
                let packed = self.packer.pack(&keys, batch.len());
                self.numbers.find_or_add_all(&packed).0
            }
        };
        let partitions = self.numbers.numbers().max(1);
        if partitions > self.partitions.len() {
            self.partitions.resize_with(partitions, Partition::default);
        }
        let by: Vec<Expr> = self.by.order.iter().map(|key| key.expr.clone()).collect();
        let sort_by = eval_all(&by, rows)?;
        // The changes of one instant.
        let mut changes: BTreeMap<u32, Vec<(usize, SortKey)>> = BTreeMap::new();
        for (row, &number) in numbers.iter().enumerate() {
            let key = sort_key(&self.by.order, &sort_by, &batch.columns, row);
            changes.entry(number).or_default().push((row, key));
            if batch.ts.get(row + 1) != Some(&batch.ts[row]) {
                for (number, changed) in std::mem::take(&mut changes) {
                    out.extend(self.change(number, batch, changed)?);
                }
            }
        }
        if !keys.is_empty() {
            for number in BTreeSet::from_iter(numbers) {
                if self.partitions[number as usize].entries.is_empty() {
                    self.numbers.remove(number);
                }
            }
            self.numbers.recycle();
        }
        self.rows.recycle();
        Ok(())
    }

    /// Inserts and retracts rows of a partition at one instant; the results that changed.
    fn change(
        &mut self,
        number: u32,
        batch: &Batch,
        changed: Vec<(usize, SortKey)>,
    ) -> Result<Option<Batch>, EvalError> {
        let ts = batch.ts[changed[0].0];
        let around = self.reach.map(|reach| {
            let mut keys: Vec<Vec<u8>> = changed.iter().map(|(_, key)| key.bytes.clone()).collect();
            keys.sort_unstable();
            keys.dedup();
            (reach, keys)
        });
        let old = match &around {
            Some((reach, keys)) => {
                let entries = &self.partitions[number as usize].entries;
                self.compute(reach.around(entries, keys))?
            }
            None => std::mem::take(&mut self.partitions[number as usize].shown),
        };
        for (row, key) in changed {
            self.change_row(number, batch, row, key);
        }
        self.discard_retracted(number);
        let entries = &self.partitions[number as usize].entries;
        let new = self.compute(match &around {
            Some((reach, keys)) => reach.around(entries, keys),
            None => vec![Stretch::of(entries.iter(), |_| true)],
        })?;
        let changes = self.changes(&old, &new, ts);
        if around.is_none() {
            self.bytes = self.bytes + new.bytes() - old.bytes();
            self.partitions[number as usize].shown = new;
        }
        Ok(changes)
    }

    /// Inserts or retracts a row.
    fn change_row(&mut self, number: u32, batch: &Batch, row: usize, key: SortKey) {
        let partition = &mut self.partitions[number as usize];
        let weight = batch.weight(row);
        if let Some(entry) = partition.entries.get_mut(&key.bytes) {
            entry.count += weight;
            if entry.count == 0 {
                partition.retracted.push(key.bytes);
            }
            return;
        }
        let slot = self.rows.reserve(1)[0];
        let columns: Vec<Column> = batch.columns.iter().map(|c| c.slice(row, 1)).collect();
        self.rows.write(&[slot], &columns);
        self.bytes += key.bytes.len() + ROW_BYTES;
        let entry = Entry {
            slot,
            count: weight,
            order_len: key.order_len,
        };
        partition.entries.insert(key.bytes, entry);
    }

    /// Discards the rows that were retracted in this instant and not inserted again.
    fn discard_retracted(&mut self, number: u32) {
        let partition = &mut self.partitions[number as usize];
        for key in std::mem::take(&mut partition.retracted) {
            if let Some(entry) = partition.entries.get(&key).filter(|e| e.count == 0) {
                self.rows.retire(entry.slot);
                partition.entries.remove(&key);
                self.bytes -= key.len() + ROW_BYTES;
            }
        }
    }

    /// The wanted results of the stretches, one after the other.
    fn compute(&self, stretches: Vec<Stretch>) -> Result<Shown, EvalError> {
        let mut shown = Shown::default();
        let mut results: Vec<Vec<Column>> = vec![Vec::new(); self.calls.len()];
        for stretch in stretches {
            let columns = self.rows.gather(&stretch.slots);
            let rows = PartitionRows::new(&columns, stretch.first_peers, &self.by, &self.calls)?;
            for (results, call) in results.iter_mut().zip(&self.calls) {
                results.push(rows.results(call, stretch.wanted.clone())?);
            }
            shown.slots.extend(&stretch.slots[stretch.wanted]);
        }
        let joined = results.into_iter().map(|mut parts| match parts.len() {
            0 => Column::Nulls(0),
            1 => parts.remove(0),
            _ => concat(&parts.iter().collect::<Vec<_>>()),
        });
        shown.results = joined.collect();
        Ok(shown)
    }

    /// The changes from `old` to `new` at an instant, if there are any.
    fn changes(&self, old: &Shown, new: &Shown, ts: i64) -> Option<Batch> {
        let changes = Changes::between(old, new);
        if changes.slots.is_empty() {
            return None;
        }
        let results = new.results.iter().enumerate().map(|(call, new)| {
            let old = old.results.get(call).unwrap_or(&Column::Nulls(0));
            take_of_two(old, new, &changes.results)
        });
        let columns = self.rows.gather(&changes.slots).into_iter();
        Some(Batch {
            ts: vec![ts; changes.slots.len()].into(),
            columns: columns.chain(results).collect(),
            weights: Some(changes.weights.into()),
        })
    }
}

impl Operator for Over {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        let mut out = Vec::new();
        for batch in whole_instants(inputs[0]) {
            self.update(&batch, &mut out)?;
        }
        Ok(match out.len() {
            0 | 1 => out,
            _ => vec![concat_batches(&out)],
        })
    }

    fn bytes(&self) -> usize {
        let partitions = self.partitions.capacity() * size_of::<Partition>();
        self.packer.bytes() + self.numbers.bytes() + partitions + self.rows.bytes() + self.bytes
    }
}
