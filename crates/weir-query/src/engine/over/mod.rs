//! Window functions: each row of a relation with values computed from its partition.
//!
//! The rows of a partition are kept in order. At each instant that changes it, results are computed
//! again and compared with those emitted before; rows whose results are unchanged are not emitted.
//!
//! Results that depend on a known number of rows before and after ([`Reach`]: `lag`, `lead`, frames
//! of ROWS) are computed for the rows around the changed ones only, once as they were and once as
//! they are. All others, and those of a partition of which many rows change, are computed for the
//! whole partition, which takes time in proportion to its rows at each such instant.
//!
//! What was emitted is computed again where it is retracted, so the result of an aggregate must not
//! depend on the order in which rows were inserted and retracted (`function/aggregate/laws.rs`).

mod changes;
mod frame;
mod partition;
mod reach;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use weir_model::{Batch, Column, Schema, Type};

use self::changes::{Changes, Exchanged};
use self::frame::PartitionRows;
use self::partition::{Entries, Entry, Partition, Shown, Stretch};
use self::reach::Reach;
use super::sort_key::{SortKey, sort_key};
use crate::eval::{Rows, eval_all};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::plan::{OverCall, Partitioning};
use crate::synopsis::gather::{concat, concat_batches, whole_instants};
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

/// A row of the input that is inserted or retracted.
struct InputRow {
    partition: u32,
    /// Its position in the batch.
    at: usize,
    key: SortKey,
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

    fn update(&mut self, batch: &Batch) -> Result<Option<Batch>, EvalError> {
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
        let mut changes = Changes::of(&self.calls);
        // Those of one instant.
        let mut rows: Vec<InputRow> = Vec::new();
        for (at, &partition) in numbers.iter().enumerate() {
            let key = sort_key(&self.by.order, &sort_by, &batch.columns, at);
            rows.push(InputRow { partition, at, key });
            if batch.ts.get(at + 1) != Some(&batch.ts[at]) {
                rows.sort_unstable_by(|a, b| {
                    (a.partition, &a.key.bytes).cmp(&(b.partition, &b.key.bytes))
                });
                for rows in rows.chunk_by(|a, b| a.partition == b.partition) {
                    self.change(batch, rows, &mut changes)?;
                }
                rows.clear();
            }
        }
        let changes = changes.finish(&self.rows);
        if !keys.is_empty() {
            for number in BTreeSet::from_iter(numbers) {
                if self.partitions[number as usize].entries.is_empty() {
                    self.numbers.remove(number);
                }
            }
            self.numbers.recycle();
        }
        self.rows.recycle();
        Ok(changes)
    }

    /// Inserts and retracts rows of a partition at one instant, in the order of their sort keys.
    fn change(
        &mut self,
        batch: &Batch,
        rows: &[InputRow],
        changes: &mut Changes,
    ) -> Result<(), EvalError> {
        let number = rows[0].partition as usize;
        let mut keys: Vec<&[u8]> = rows.iter().map(|row| &row.key.bytes[..]).collect();
        keys.dedup();
        let partition = &mut self.partitions[number];
        let shown = partition.shown.take();
        self.bytes -= shown.as_ref().map_or(0, Shown::bytes);
        let entries = partition.entries.len();
        let reach = self.reach;
        let reach = reach.filter(|reach| reach.is_worthwhile(keys.len(), entries));
        let stretches = |entries: &Entries| match reach {
            Some(reach) => reach.around(entries, &keys),
            None => vec![Stretch::of(entries.iter(), |_| true)],
        };
        let old = match shown.filter(|_| reach.is_none()) {
            Some(shown) => shown,
            None => self.compute(stretches(&self.partitions[number].entries))?,
        };
        let exchanged = self.exchange(batch, rows);
        let new = self.compute(stretches(&self.partitions[number].entries))?;
        changes.add(batch.ts[rows[0].at], &old, &new, &exchanged);
        if reach.is_none() {
            self.bytes += new.bytes();
            self.partitions[number].shown = Some(new);
        }
        Ok(())
    }

    /// Inserts and retracts rows of a partition.
    fn exchange(&mut self, batch: &Batch, rows: &[InputRow]) -> Exchanged {
        let entries = &mut self.partitions[rows[0].partition as usize].entries;
        let mut exchanged = Exchanged::default();
        for row in rows {
            let (key, weight) = (&row.key, batch.weight(row.at));
            if let Some(entry) = entries.get_mut(&key.bytes) {
                entry.count += weight;
                continue;
            }
            let slot = self.rows.reserve(1)[0];
            let columns = batch.columns.iter().map(|c| c.slice(row.at, 1));
            let columns: Vec<Column> = columns.collect();
            self.rows.write(&[slot], &columns);
            self.bytes += key.bytes.len() + ROW_BYTES;
            let entry = Entry {
                slot,
                count: weight,
                order_len: key.order_len,
            };
            entries.insert(key.bytes.clone(), entry);
            exchanged.inserted.push(slot);
        }
        // A row may be retracted and inserted again at one instant.
        for row in rows {
            let key = &row.key.bytes;
            if entries.get(key).is_some_and(|entry| entry.count == 0) {
                let entry = entries.remove(key).expect("it was found");
                self.rows.retire(entry.slot);
                self.bytes -= key.len() + ROW_BYTES;
                exchanged.retracted.push(entry.slot);
            }
        }
        exchanged.sort();
        exchanged
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
}

impl Operator for Over {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        let mut out = Vec::new();
        for batch in whole_instants(inputs[0]) {
            out.extend(self.update(&batch)?);
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
