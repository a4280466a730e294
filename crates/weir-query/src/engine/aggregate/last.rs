//! Groups of append-only input of which only the final content is wanted: no results are computed
//! before the end.

use weir_model::{Batch, Column};

use super::interval::Interval;
use crate::expr::Expr;
use crate::function::{AggregateCall, EvalError};
use crate::operator::{Operator, QueryStart, Span};
use crate::plan::GlobalGroup;

/// All groups so far.
pub(in crate::engine) struct FinalGroups {
    groups: Interval,
    /// The instant of the last row, or of the start of the query where the row over no rows exists
    /// from then on; `None` while the result is empty.
    last: Option<i64>,
    /// Set when the row over no rows exists from the start of the query on.
    beginning: Option<QueryStart>,
}

impl FinalGroups {
    /// Groups by `keys` and computes `calls`.
    pub(in crate::engine) fn new(
        keys: &[Expr],
        calls: &[AggregateCall],
        global: GlobalGroup,
    ) -> FinalGroups {
        let from_start = keys.is_empty() && global == GlobalGroup::FromStart;
        FinalGroups {
            groups: Interval::new(keys, calls),
            last: None,
            beginning: from_start.then(QueryStart::default),
        }
    }
}

impl Operator for FinalGroups {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let start = self.beginning.as_mut().and_then(|start| start.within(span));
        self.last = self.last.max(start);
        for batch in inputs[0].iter().filter(|batch| !batch.is_empty()) {
            self.groups.fold(batch)?;
            self.last = self.last.max(batch.ts.last().copied());
        }
        Ok(Vec::new())
    }

    fn finish(&mut self) -> Result<Option<Batch>, EvalError> {
        let Some(last) = self.last.take() else {
            return Ok(None);
        };
        let (columns, len): (Vec<Column>, usize) = self.groups.finish()?;
        Ok(Some(Batch::deltas(vec![last; len], vec![1; len], columns)))
    }

    fn bytes(&self) -> usize {
        self.groups.bytes()
    }
}
