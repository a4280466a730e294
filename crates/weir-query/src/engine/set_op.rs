//! `UNION`, `INTERSECT` and `EXCEPT`, of sets and, with `ALL`, of bags.

use weir_model::{Batch, Schema, Type};

use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::plan;
use crate::synopsis::gather::{concat_batches, pick, take_columns, weights};
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::table::KeyTable;
use crate::synopsis::{by_time, gather};

/// `UNION ALL`: the deltas of both.
pub(super) struct UnionAll;

impl Operator for UnionAll {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        Ok(match inputs {
            [left, []] => left.to_vec(),
            [[], right] => right.to_vec(),
            _ => vec![merged(inputs).0],
        })
    }

    fn bytes(&self) -> usize {
        0
    }
}

/// The rows of both inputs in timestamp order, those of the left first in an instant, and a mask of
/// the right's.
fn merged(inputs: &[&[Batch]]) -> (Batch, Vec<bool>) {
    let left = concat_batches(inputs[0]);
    let right = concat_batches(inputs[1]);
    let split = left.len();
    let order = by_time::merge(&left.ts, &right.ts);
    let is_right = order.iter().map(|&row| row as usize >= split).collect();
    let columns = left.columns.iter().zip(&right.columns);
    let columns: Vec<_> = columns.map(|(l, r)| gather::concat(&[l, r])).collect();
    let batch = Batch {
        ts: pick(&[&left.ts[..], &right.ts[..]].concat(), &order).into(),
        weights: Some(
            pick(
                &[&weights(&left)[..], &weights(&right)[..]].concat(),
                &order,
            )
            .into(),
        ),
        columns: take_columns(&columns, &order),
    };
    (batch, is_right)
}

/// The set operators that need the multiplicity of a row on either side.
pub(super) struct Combine {
    op: plan::SetOp,
    all: bool,
    packer: KeyPacker,
    table: KeyTable,
    rows: Vec<Counts>,
}

/// Multiplicities of one row.
#[derive(Clone, Copy, Default)]
struct Counts {
    left: i64,
    right: i64,
    /// The multiplicity in the result.
    shown: i64,
    /// Whether it is on the list of the current instant.
    touched: bool,
}

impl Combine {
    /// For rows of this schema.
    pub(super) fn new(op: plan::SetOp, all: bool, schema: &Schema) -> Combine {
        let types: Vec<Type> = schema.fields.iter().map(|f| f.ty).collect();
        let packer = KeyPacker::new(&types);
        Combine {
            op,
            all,
            table: KeyTable::new(packer.width()),
            packer,
            rows: Vec::new(),
        }
    }

    /// The multiplicity of a row in the result.
    fn count(&self, counts: Counts) -> i64 {
        let (l, r) = match self.all {
            true => (counts.left, counts.right),
            false => (counts.left.min(1), counts.right.min(1)),
        };
        match self.op {
            plan::SetOp::Union if self.all => l + r,
            plan::SetOp::Union => l.max(r),
            plan::SetOp::Intersect => l.min(r),
            plan::SetOp::Except => (l - r).max(0),
        }
    }

    fn combine(&mut self, batch: &Batch, is_right: &[bool]) -> Batch {
        let keys = self.packer.pack(&batch.columns, batch.len());
        let mut touched: Vec<(u32, u32)> = Vec::new();
        let (mut picks, mut out_weights) = (Vec::new(), Vec::new());
        for (row, &is_right) in is_right.iter().enumerate() {
            let (number, added) = self.table.find_or_add(&keys, row);
            if self.table.numbers() > self.rows.len() {
                self.rows.resize(self.table.numbers(), Counts::default());
            }
            let counts = &mut self.rows[number as usize];
            if added {
                *counts = Counts::default();
            }
            let side = if is_right {
                &mut counts.right
            } else {
                &mut counts.left
            };
            *side += batch.weight(row);
            if !std::mem::replace(&mut counts.touched, true) {
                touched.push((number, row as u32));
            }
            if batch.ts.get(row + 1) == Some(&batch.ts[row]) {
                continue;
            }
            for (number, row) in touched.drain(..) {
                let counts = self.rows[number as usize];
                let count = self.count(counts);
                if count != counts.shown {
                    picks.push(row);
                    out_weights.push(count - counts.shown);
                }
                self.rows[number as usize] = Counts {
                    shown: count,
                    touched: false,
                    ..counts
                };
                if counts.left == 0 && counts.right == 0 {
                    self.table.remove(number);
                }
            }
        }
        self.table.recycle();
        Batch {
            ts: pick(&batch.ts, &picks).into(),
            weights: Some(out_weights.into()),
            columns: take_columns(&batch.columns, &picks),
        }
    }
}

impl Operator for Combine {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        if inputs.iter().all(|i| i.is_empty()) {
            return Ok(Vec::new());
        }
        let (batch, is_right) = match inputs {
            [left, []] => {
                let batch = concat_batches(left);
                let is_right = vec![false; batch.len()];
                (batch, is_right)
            }
            [[], right] => {
                let batch = concat_batches(right);
                let is_right = vec![true; batch.len()];
                (batch, is_right)
            }
            _ => merged(inputs),
        };
        Ok(vec![self.combine(&batch, &is_right)])
    }

    fn bytes(&self) -> usize {
        self.packer.bytes() + self.table.bytes() + self.rows.capacity() * size_of::<Counts>()
    }
}
