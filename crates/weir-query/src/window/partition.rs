//! `[Partition By a, b Rows n]`: the last n rows of each key.

use serde::{Deserialize, Serialize};
use weir_model::{Batch, Schema, Type};

use super::{Print, WindowContent, WindowKind};
use crate::eval::{self, eval_all};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::synopsis::gather::whole_instants;
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::slots::Slots;
use crate::synopsis::table::KeyTable;

/// The last rows of each key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Partition {
    /// The partitioning expressions; NULLs are one key.
    pub keys: Vec<Expr>,
    /// The number of rows, at least 1.
    pub rows: u64,
}

impl WindowKind for Partition {
    fn text(&self, print: &Print<'_>) -> String {
        let keys: Vec<String> = self.keys.iter().map(print.expr).collect();
        format!("partition by {} rows {}", keys.join(", "), self.rows)
    }

    fn content(&self) -> WindowContent {
        WindowContent::Rows(self.rows)
    }

    fn is_fifo(&self) -> bool {
        false
    }

    fn is_per_row(&self) -> bool {
        false
    }

    // A condition on the keys drops all rows of a key or none.
    fn commutes_with(&self, condition: &Expr) -> bool {
        super::reads_only(&self.keys, condition)
    }

    fn exprs(&self) -> &[Expr] {
        &self.keys
    }

    fn exprs_mut(&mut self) -> &mut [Expr] {
        &mut self.keys
    }

    fn operator(&self, schema: &Schema, _: i64) -> Box<dyn Operator> {
        Box::new(PartitionOperator::new(&self.keys, self.rows, schema))
    }
}

/// The last rows of each key, as many as there may be.
struct PartitionOperator {
    keys: Vec<Expr>,
    rows_max: u64,
    packer: KeyPacker,
    table: KeyTable,
    /// A queue of slots for each key.
    queues: Vec<Queue>,
    slots: Slots,
    /// The next younger row of the same key, by slot.
    next: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Queue {
    oldest: u32,
    youngest: u32,
    len: u64,
}

impl PartitionOperator {
    /// A window of `rows` rows per key over a stream of this schema.
    fn new(keys: &[Expr], rows: u64, schema: &Schema) -> PartitionOperator {
        let types: Vec<Type> = keys.iter().map(Expr::ty).collect();
        let packer = KeyPacker::new(&types);
        PartitionOperator {
            keys: keys.to_vec(),
            rows_max: rows,
            table: KeyTable::new(packer.width()),
            packer,
            queues: Vec::new(),
            slots: Slots::new(schema),
            next: Vec::new(),
        }
    }

    fn slide_over(&mut self, batch: &Batch) -> Result<Batch, EvalError> {
        let len = batch.len();
        let rows = eval::Rows {
            columns: &batch.columns,
            len,
        };
        let keys = eval_all(&self.keys, rows)?;
        let keys = self.packer.pack(&keys, len);
        let slots = self.slots.reserve(len);
        self.slots.write(&slots, &batch.columns);
        self.next.resize(self.slots.len(), 0);
        let (mut ts, mut weights, mut picks) = (Vec::new(), Vec::new(), Vec::new());
        for (row, &slot) in slots.iter().enumerate() {
            let (number, added) = self.table.find_or_add(&keys, row);
            if self.table.numbers() > self.queues.len() {
                self.queues.resize(self.table.numbers(), Queue::default());
            }
            let queue = &mut self.queues[number as usize];
            if added {
                *queue = Queue {
                    oldest: slot,
                    youngest: slot,
                    len: 0,
                };
            } else {
                self.next[queue.youngest as usize] = slot;
                queue.youngest = slot;
            }
            queue.len += 1;
            let mut change = |slot, weight| {
                ts.push(batch.ts[row]);
                weights.push(weight);
                picks.push(slot);
            };
            change(slot, 1);
            if queue.len > self.rows_max {
                change(queue.oldest, -1);
                self.slots.retire(queue.oldest);
                queue.oldest = self.next[queue.oldest as usize];
                queue.len -= 1;
            }
        }
        let columns = self.slots.gather(&picks);
        self.slots.recycle();
        Ok(Batch {
            ts: ts.into(),
            weights: Some(weights.into()),
            columns,
        })
    }
}

impl Operator for PartitionOperator {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        whole_instants(inputs[0])
            .iter()
            .map(|batch| self.slide_over(batch))
            .collect()
    }

    fn bytes(&self) -> usize {
        self.table.bytes()
            + self.packer.bytes()
            + self.slots.bytes()
            + self.queues.capacity() * size_of::<Queue>()
            + self.next.capacity() * 4
    }
}
