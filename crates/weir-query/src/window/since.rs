//! Requests by the time of their issue: the window that remains of a join of requests with their
//! responses.
//!
//! A row with timestamp t and origin o <= t enters at t and leaves at o + N, both rounded up to a
//! multiple of S where there is a slide; it never enters if the second is not later. So rows leave
//! in another order than they entered.

use arrow_array::Array;
use serde::{Deserialize, Serialize};
use weir_model::{Batch, Column, Schema};

use super::merge::merge;
use super::schedule::Schedule;
use super::{Print, Window, WindowContent, WindowKind, round_down, round_up};
use crate::eval::{self, eval};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::synopsis::fifo::Fifo;
use crate::synopsis::gather::{take_batch, whole_instants};
use crate::synopsis::slots::Slots;

/// The rows that have arrived by τ and whose `origin`, an instant not after their own, is in
/// (τ - size, τ]; a row whose origin is NULL is in none. With a slide S, τ rounded down to a
/// multiple of S stands for τ. A query receives no row whose origin is not after its own start.
///
/// It has no syntax in CQL: it is what remains of a join of requests with their responses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Since {
    /// An integer or a time.
    pub origin: Expr,
    /// The length; `None` is unbounded.
    pub size: Option<i64>,
    /// The relation changes only at multiples of this.
    pub slide: Option<i64>,
}

impl WindowKind for Since {
    fn text(&self, print: &Print<'_>) -> String {
        let size = self.size.map_or("unbounded".into(), print.span);
        let (origin, slide) = ((print.expr)(&self.origin), print.slide(self.slide));
        format!("range {size} since {origin}{slide}")
    }

    fn remark(&self) -> Option<&'static str> {
        Some("computed from the tap's pairs of requests and responses, without a join")
    }

    fn slide(&self) -> Option<i64> {
        self.slide
    }

    fn with_slide(&self, every: i64) -> Option<Window> {
        let slide = Some(every);
        (self.slide.is_none()).then(|| {
            Since {
                slide,
                ..self.clone()
            }
            .into()
        })
    }

    // A row may be too old at the multiple, for any length of the window.
    fn contains_all_at_multiples(&self, _: i64) -> bool {
        false
    }

    fn whole_slides(&self) -> Result<(Option<i64>, i64), String> {
        Err("its window is based on the time of issue".into())
    }

    // A row does not arrive before its origin, by which it leaves.
    fn memory(&self) -> Option<i64> {
        Some(self.size?.saturating_add(self.slide.unwrap_or(0)))
    }

    fn content(&self) -> WindowContent {
        self.size
            .map_or(WindowContent::All, WindowContent::Instants)
    }

    fn is_fifo(&self) -> bool {
        false
    }

    // Not all rows enter the window; a condition must not fail on the others.
    fn commutes_with(&self, condition: &Expr) -> bool {
        !condition.may_fail()
    }

    fn exprs(&self) -> &[Expr] {
        std::slice::from_ref(&self.origin)
    }

    fn exprs_mut(&mut self) -> &mut [Expr] {
        std::slice::from_mut(&mut self.origin)
    }

    fn operator(&self, schema: &Schema, after: i64) -> Box<dyn Operator> {
        Box::new(SinceOperator::new(self.clone(), after, schema))
    }
}

/// The rows whose origin lies in the last N instants.
struct SinceOperator {
    window: Since,
    /// Rows whose origin is not after this are too old.
    after: i64,
    /// Rows that wait for the next multiple of the slide.
    pending: Fifo,
    /// Rows in the relation that will leave it, and when.
    inside: Slots,
    schedule: Schedule,
}

impl SinceOperator {
    /// The operator over a stream of this schema, for origins later than `after`.
    fn new(window: Since, after: i64, schema: &Schema) -> SinceOperator {
        SinceOperator {
            after,
            pending: Fifo::default(),
            inside: Slots::new(schema),
            schedule: Schedule::new(window.size.unwrap_or(i64::MAX)),
            window,
        }
    }

    /// When a row of this origin leaves; one that would leave after the last instant never does.
    fn leaves(&self, origin: i64) -> i64 {
        let end = self.window.size.and_then(|size| origin.checked_add(size));
        end.map_or(i64::MAX, |end| round_up(end, self.window.slide))
    }

    /// The rows of `batch` that enter the relation, when they enter, and when each leaves.
    fn seen(&self, batch: &Batch) -> Result<(Batch, Vec<i64>), EvalError> {
        let rows = eval::Rows {
            columns: &batch.columns,
            len: batch.len(),
        };
        let origins = eval(&self.window.origin, rows)?;
        let (mut seen, mut leave) = (Vec::new(), Vec::new());
        if let Column::Int(origins) = &origins {
            for (row, (&ts, &origin)) in batch.ts.iter().zip(origins.values()).enumerate() {
                let known = !origins.is_null(row) && self.after < origin && origin <= ts;
                let leaves = self.leaves(origin);
                if known && round_up(ts, self.window.slide) < leaves {
                    seen.push(row as u32);
                    leave.push(leaves);
                }
            }
        }
        let seen = match seen.len() == batch.len() {
            true => batch.clone(),
            false => take_batch(batch, &seen),
        };
        Ok((self.moved(seen), leave))
    }

    /// The rows at the instants at which they enter.
    fn moved(&self, batch: Batch) -> Batch {
        if self.window.slide.is_none() {
            return batch;
        }
        let ts: Vec<i64> = batch
            .ts
            .iter()
            .map(|&t| round_up(t, self.window.slide))
            .collect();
        Batch {
            ts: ts.into(),
            ..batch
        }
    }

    /// Stores the entered rows until they leave.
    fn keep(&mut self, batch: &Batch, leave: &[i64]) {
        let slots = self.inside.reserve(batch.len());
        self.inside.write(&slots, &batch.columns);
        let leaving = leave.iter().copied().zip(slots);
        self.schedule.add(leaving.filter(|(at, _)| *at < i64::MAX));
    }

    /// The rows that leave up to `upto`.
    fn leaving(&mut self, upto: i64) -> Vec<Batch> {
        let leaving = self.schedule.take_until(upto);
        if leaving.is_empty() {
            return Vec::new();
        }
        let (ts, slots): (Vec<i64>, Vec<u32>) = leaving.into_iter().unzip();
        let columns = self.inside.gather(&slots);
        slots.iter().for_each(|slot| self.inside.retire(*slot));
        self.inside.recycle();
        vec![Batch::stream(ts, columns)]
    }
}

impl Operator for SinceOperator {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let arrived = whole_instants(inputs[0]);
        let arrived = match self.window.slide {
            None => arrived,
            Some(_) => {
                arrived.into_iter().for_each(|b| self.pending.push(b));
                self.pending
                    .take_until(round_down(span.upto, self.window.slide))
            }
        };
        let mut entering = Vec::new();
        for batch in &arrived {
            let (batch, leave) = self.seen(batch)?;
            if self.window.size.is_some() {
                self.keep(&batch, &leave);
            }
            entering.extend((!batch.is_empty()).then_some(batch));
        }
        let leaving = self.leaving(span.upto);
        let entering = match self.window.slide {
            None => entering,
            Some(_) => whole_instants(&entering),
        };
        Ok(merge(entering, leaving))
    }

    fn bound_span(&self, span: Span, rows_max: usize) -> i64 {
        let enters = |row: usize| {
            self.pending
                .ts(row)
                .map(|ts| round_up(ts, self.window.slide))
        };
        // The instant of row `rows_max` may be that of rows before it; then that instant is
        // processed whole.
        let bound = |last: Option<i64>, first: Option<i64>| match (last, first) {
            (Some(last), Some(first)) => last.max(first),
            _ => i64::MAX,
        };
        span.upto
            .min(bound(
                self.schedule.bound_span(rows_max),
                self.schedule.first(),
            ))
            .min(bound(enters(rows_max).map(|at| at - 1), enters(0)))
            .max(span.after + 1)
    }

    fn bytes(&self) -> usize {
        self.pending.bytes() + self.inside.bytes() + self.schedule.bytes()
    }
}
