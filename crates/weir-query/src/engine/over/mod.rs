//! Window functions: each row of a relation with values computed from its partition.
//!
//! The rows of a partition are kept in order. At each instant that changes it, all of its results
//! are computed again and compared with those emitted before; rows whose results are unchanged are
//! not emitted. This takes time in proportion to the partition's rows at each such instant.

mod frame;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_model::{Batch, Column, Schema, Type};

use self::frame::PartitionRows;
use super::sort_key::sort_key;
use crate::eval::{Rows, eval_all};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::plan::{OverCall, Partitioning};
use crate::synopsis::gather::{column_bytes, concat_batches, take_of_two, whole_instants};
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::slots::Slots;
use crate::synopsis::table::KeyTable;

/// The rows of a relation with the results of window functions.
pub(super) struct Over {
    by: Partitioning,
    calls: Vec<OverCall>,
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

#[derive(Default)]
struct Partition {
    /// Its rows by sort key.
    entries: BTreeMap<Vec<u8>, Entry>,
    /// Those whose last copy was retracted in the current instant.
    retracted: Vec<Vec<u8>>,
    shown: Shown,
}

struct Entry {
    slot: u32,
    count: i64,
    /// How many bytes of the sort key are equal among peers.
    order_len: usize,
}

/// What was emitted of a partition.
#[derive(Default)]
struct Shown {
    /// The rows in order, copies as often as there are.
    slots: Vec<u32>,
    /// The results of each call.
    results: Vec<Column>,
}

impl Shown {
    fn bytes(&self) -> usize {
        self.slots.capacity() * 4 + self.results.iter().map(column_bytes).sum::<usize>()
    }

    /// The copies of each row: its slot, the position of the first one, and their number.
    fn runs(&self) -> impl Iterator<Item = (u32, usize, usize)> + '_ {
        let mut start = 0;
        self.slots.chunk_by(|a, b| a == b).map(move |copies| {
            let first = start;
            start += copies.len();
            (copies[0], first, copies.len())
        })
    }
}

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
        let mut changed = BTreeSet::new();
        for (row, &number) in numbers.iter().enumerate() {
            self.change(number, batch, &sort_by, row);
            changed.insert(number);
            if batch.ts.get(row + 1) != Some(&batch.ts[row]) {
                for number in std::mem::take(&mut changed) {
                    self.discard_retracted(number);
                    out.extend(self.show(number, batch.ts[row])?);
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

    /// Inserts or retracts a row.
    fn change(&mut self, number: u32, batch: &Batch, sort_by: &[Column], row: usize) {
        let partition = &mut self.partitions[number as usize];
        let key = sort_key(&self.by.order, sort_by, &batch.columns, row);
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

    /// Computes the results of a partition and emits those that changed.
    fn show(&mut self, number: u32, ts: i64) -> Result<Option<Batch>, EvalError> {
        let partition = &mut self.partitions[number as usize];
        let mut slots = Vec::new();
        let mut peers: Vec<usize> = Vec::new();
        let mut before: Option<&[u8]> = None;
        for (key, entry) in &partition.entries {
            let order = &key[..entry.order_len];
            let first_peer = match peers.last() {
                Some(&first) if before == Some(order) => first,
                _ => slots.len(),
            };
            let copies = usize::try_from(entry.count).unwrap_or(0);
            slots.extend(std::iter::repeat_n(entry.slot, copies));
            peers.resize(slots.len(), first_peer);
            before = Some(order);
        }
        let columns = self.rows.gather(&slots);
        let rows = PartitionRows::new(&columns, peers, &self.by.order)?;
        let results = self.calls.iter().map(|call| rows.results(call));
        let results: Vec<Column> = results.collect::<Result<_, _>>()?;
        let new = Shown { slots, results };
        let changes = Changes::between(&partition.shown, &new);
        self.bytes = self.bytes + new.bytes() - partition.shown.bytes();
        let old = std::mem::replace(&mut partition.shown, new);
        if changes.slots.is_empty() {
            return Ok(None);
        }
        let new_results = &partition.shown.results;
        let results = (0..self.calls.len()).map(|call| match old.results.get(call) {
            Some(old) => take_of_two(old, &new_results[call], &changes.results),
            None => take_of_two(&Column::Nulls(0), &new_results[call], &changes.results),
        });
        let columns = self.rows.gather(&changes.slots);
        Ok(Some(Batch {
            ts: vec![ts; changes.slots.len()].into(),
            columns: columns.into_iter().chain(results).collect(),
            weights: Some(changes.weights.into()),
        }))
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
