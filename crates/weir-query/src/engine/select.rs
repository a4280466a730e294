//! `WHERE`: the rows for which a predicate is true.

use weir_model::Batch;

use crate::eval::{Rows, true_rows};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::synopsis::gather::take_batch;

/// Passes the rows for which the predicate is true.
pub(super) struct Select {
    predicate: Expr,
}

impl Select {
    pub(super) fn new(predicate: Expr) -> Select {
        Select { predicate }
    }
}

impl Operator for Select {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        let mut out = Vec::with_capacity(inputs[0].len());
        for batch in inputs[0] {
            let rows = Rows {
                columns: &batch.columns,
                len: batch.len(),
            };
            match true_rows(&self.predicate, rows)? {
                None => out.push(batch.clone()),
                Some(bits) => {
                    let picked: Vec<u32> = bits.set_indices_u32().collect();
                    if picked.len() == batch.len() {
                        out.push(batch.clone());
                    } else if !picked.is_empty() {
                        out.push(take_batch(batch, &picked));
                    }
                }
            }
        }
        Ok(out)
    }

    fn bytes(&self) -> usize {
        0
    }
}
