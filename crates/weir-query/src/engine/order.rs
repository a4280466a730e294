//! `ORDER BY .. LIMIT n OFFSET m`: the rows from m to m + n in an order, updated incrementally.
//! Rows with equal sort keys are ordered by all their columns.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use weir_model::{Batch, Column, Schema};

use super::sort_key::{append_order, sort_key};
use crate::eval::{Rows, eval};
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::plan::OrderBy;
use crate::synopsis::gather::whole_instants;
use crate::synopsis::slots::Slots;

/// The first rows.
pub(super) struct Order {
    by: Vec<OrderBy>,
    limit: u64,
    offset: u64,
    /// All rows by sort key, encoded as bytes that compare in the same order.
    entries: BTreeMap<Vec<u8>, Entry>,
    entry_bytes: usize,
    rows: Slots,
    /// The rows in the result.
    shown: Vec<(u32, u64)>,
    /// Retracted rows, which are discarded at the end of their instant unless they are inserted
    /// again in it.
    retracted: Vec<Vec<u8>>,
    /// The sort key of the last row that matters; rows after it change nothing. `None` while there
    /// are too few rows.
    bound: Option<Vec<u8>>,
    /// No row is ever retracted, and those after `bound` are not stored.
    append_only: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    slot: u32,
    count: i64,
}

/// Bytes of a map entry beside its key's.
const ENTRY_BYTES: usize = 64;

impl Order {
    /// The rows from `offset` to `offset + limit` of a relation of this schema.
    pub(super) fn new(by: &[OrderBy], limit: Option<u64>, offset: u64, schema: &Schema) -> Order {
        Order {
            by: by.to_vec(),
            limit: limit.unwrap_or(u64::MAX),
            offset,
            entries: BTreeMap::new(),
            entry_bytes: 0,
            rows: Slots::new(schema),
            shown: Vec::new(),
            retracted: Vec::new(),
            bound: None,
            append_only: false,
        }
    }

    /// The same, where no row is ever retracted.
    pub(super) fn append_only(self) -> Order {
        Order {
            append_only: true,
            ..self
        }
    }

    fn update(&mut self, batch: &Batch) -> Result<Batch, EvalError> {
        let rows = Rows {
            columns: &batch.columns,
            len: batch.len(),
        };
        let keys = self
            .by
            .iter()
            .map(|b| eval(&b.expr, rows))
            .collect::<Result<Vec<_>, _>>()?;
        let mut out = Changes::default();
        let mut matters = false;
        let mut order = Vec::new();
        for row in 0..batch.len() {
            order.clear();
            append_order(&self.by, &keys, row, &mut order);
            if !(self.append_only && self.is_beyond(&order)) {
                let place = sort_key(&self.by, &keys, &batch.columns, row).bytes;
                matters |= self.bound.as_ref().is_none_or(|bound| place <= *bound);
                self.change(place, batch, row);
            }
            if batch.ts.get(row + 1) != Some(&batch.ts[row]) {
                self.discard_retracted();
                if std::mem::take(&mut matters) {
                    self.show(batch.ts[row], &mut out);
                }
            }
        }
        let columns = self.rows.gather(&out.slots);
        self.rows.recycle();
        Ok(Batch {
            ts: out.ts.into(),
            weights: Some(out.weights.into()),
            columns,
        })
    }

    /// Whether a row whose sort key begins with `order` is after all rows that matter.
    fn is_beyond(&self, order: &[u8]) -> bool {
        let bound = self.bound.as_deref();
        bound.is_some_and(|bound| order > &bound[..order.len().min(bound.len())])
    }

    fn change(&mut self, place: Vec<u8>, batch: &Batch, row: usize) {
        let weight = batch.weight(row);
        if let Some(entry) = self.entries.get_mut(&place) {
            entry.count += weight;
            if entry.count == 0 {
                self.retracted.push(place);
            }
            return;
        }
        let slot = self.rows.reserve(1)[0];
        let columns: Vec<Column> = batch.columns.iter().map(|c| c.slice(row, 1)).collect();
        self.rows.write(&[slot], &columns);
        self.entry_bytes += place.len() + ENTRY_BYTES;
        self.entries.insert(
            place,
            Entry {
                slot,
                count: weight,
            },
        );
    }

    /// Discards the rows that were retracted in this instant and not inserted again.
    fn discard_retracted(&mut self) {
        for place in std::mem::take(&mut self.retracted) {
            if let Some(entry) = self.entries.get(&place).filter(|e| e.count == 0) {
                self.rows.retire(entry.slot);
                self.entries.remove(&place);
                self.entry_bytes -= place.len() + ENTRY_BYTES;
            }
        }
    }

    /// Discards the rows after those that matter, if none that matters is ever retracted.
    fn discard_beyond(&mut self) {
        let Some(bound) = self.bound.as_ref().filter(|_| self.append_only) else {
            return;
        };
        let first = (Bound::Excluded(bound.clone()), Bound::Unbounded);
        let beyond: Vec<Vec<u8>> = self.entries.range(first).map(|(p, _)| p.clone()).collect();
        for place in beyond {
            let entry = self.entries.remove(&place).expect("it was found above");
            self.entry_bytes -= place.len() + ENTRY_BYTES;
            self.rows.retire(entry.slot);
        }
    }

    /// Compares the first rows with those in the result and emits the changes.
    fn show(&mut self, ts: i64, out: &mut Changes) {
        let (mut skip, mut left) = (self.offset, self.limit);
        let mut shown: Vec<(u32, u64)> = Vec::new();
        self.bound = None;
        for (place, entry) in &self.entries {
            let count = entry.count.unsigned_abs();
            let skipped = skip.min(count);
            skip -= skipped;
            let included = (count - skipped).min(left);
            left -= included;
            if included > 0 {
                shown.push((entry.slot, included));
            }
            if left == 0 {
                self.bound = Some(place.clone());
                break;
            }
        }
        self.discard_beyond();
        let mut net: HashMap<u32, i64> = HashMap::new();
        for &(slot, count) in &shown {
            *net.entry(slot).or_default() += count as i64;
        }
        for &(slot, count) in &self.shown {
            *net.entry(slot).or_default() -= count as i64;
        }
        let changed = self.shown.iter().chain(&shown).filter_map(|(slot, _)| {
            let weight = net.remove(slot).filter(|&w| w != 0)?;
            Some((*slot, weight))
        });
        for (slot, weight) in changed {
            out.ts.push(ts);
            out.weights.push(weight);
            out.slots.push(slot);
        }
        self.shown = shown;
    }
}

#[derive(Default)]
struct Changes {
    ts: Vec<i64>,
    weights: Vec<i64>,
    slots: Vec<u32>,
}

impl Operator for Order {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        whole_instants(inputs[0])
            .iter()
            .map(|batch| self.update(batch))
            .collect()
    }

    fn bytes(&self) -> usize {
        self.entry_bytes + self.rows.bytes() + self.shown.capacity() * 16
    }
}
