//! `[Rows n]`: the last n rows, ties broken by arrival. A row that enters and leaves in one instant
//! is not emitted.

use serde::{Deserialize, Serialize};
use weir_model::{Batch, Schema};

use super::{Print, WindowContent, WindowKind};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Held, Operator, Span};
use crate::synopsis::fifo::Fifo;
use crate::synopsis::gather::{concat_batches, take_columns, whole_instants};

/// The last rows, ties broken by arrival.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rows {
    /// The number of rows, at least 1.
    pub rows: u64,
}

impl WindowKind for Rows {
    fn text(&self, _: &Print<'_>) -> String {
        format!("rows {}", self.rows)
    }

    fn content(&self) -> WindowContent {
        WindowContent::Rows(self.rows)
    }

    fn is_per_row(&self) -> bool {
        false
    }

    fn commutes_with(&self, _: &Expr) -> bool {
        false
    }

    fn operator(&self, _: &Schema, _: i64) -> Box<dyn Operator> {
        Box::new(RowsOperator::new(self.rows))
    }
}

/// The last rows, as many as there may be.
struct RowsOperator {
    rows_max: usize,
    inside: Fifo,
}

impl RowsOperator {
    /// A window of `rows` rows.
    fn new(rows: u64) -> RowsOperator {
        RowsOperator {
            rows_max: usize::try_from(rows).unwrap_or(usize::MAX),
            inside: Fifo::default(),
        }
    }

    fn slide_over(&mut self, batch: Batch) -> Batch {
        let held = self.inside.len();
        let leaving = (held + batch.len()).saturating_sub(self.rows_max);
        let old = self.inside.take_rows(leaving);
        let old_len: usize = old.iter().map(Batch::len).sum();
        self.inside.push(batch.clone());
        self.inside.take_rows(leaving - old_len);
        if leaving == 0 {
            return batch;
        }
        // The rows of `all` are in order of arrival; those in `first..` are in the relation, after
        // those that stay throughout.
        let all = concat_batches(&[old, vec![batch.clone()]].concat());
        let stay = held - old_len;
        let mut first = 0;
        let (mut ts, mut weights, mut picks) = (Vec::new(), Vec::new(), Vec::<u32>::new());
        let mut start = 0;
        while start < batch.len() {
            let at = batch.ts[start];
            let end = start + batch.ts[start..].partition_point(|&t| t == at);
            let next = (stay + old_len + end)
                .saturating_sub(self.rows_max)
                .max(first);
            let come = (old_len + start).max(next)..old_len + end;
            let go = first..next.min(old_len + start);
            weights.extend(come.clone().map(|_| 1).chain(go.clone().map(|_| -1)));
            picks.extend(come.chain(go).map(|row| row as u32));
            ts.resize(picks.len(), at);
            first = next;
            start = end;
        }
        Batch {
            ts: ts.into(),
            weights: Some(weights.into()),
            columns: take_columns(&all.columns, &picks),
        }
    }
}

impl Operator for RowsOperator {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        Ok(whole_instants(inputs[0])
            .into_iter()
            .map(|batch| self.slide_over(batch))
            .collect())
    }

    fn held(&self) -> Held {
        Held {
            pending: 0,
            inside: self.inside.len(),
        }
    }

    fn bytes(&self) -> usize {
        self.inside.bytes()
    }
}
