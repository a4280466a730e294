//! The select list: for each row, the values of some expressions.

use weir_model::Batch;

use crate::eval::{Rows, eval};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Operator, Span};

/// Computes one output row for each row.
pub(super) struct Project {
    exprs: Vec<Expr>,
}

impl Project {
    pub(super) fn new(exprs: Vec<Expr>) -> Project {
        Project { exprs }
    }
}

impl Operator for Project {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        let project = |batch: &Batch| {
            let rows = Rows {
                columns: &batch.columns,
                len: batch.len(),
            };
            let columns = self
                .exprs
                .iter()
                .map(|e| eval(e, rows))
                .collect::<Result<_, _>>()?;
            Ok(Batch {
                ts: batch.ts.clone(),
                weights: batch.weights.clone(),
                columns,
            })
        };
        inputs[0]
            .iter()
            .filter(|b| !b.is_empty())
            .map(project)
            .collect()
    }

    fn bytes(&self) -> usize {
        0
    }
}
