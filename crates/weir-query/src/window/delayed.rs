//! `[Range N Delay D]` and `[Range N Slide S Delay D]`: a window that lies in the past. A row is in
//! it when it would be in `[Range N Slide S]` if its timestamp were D later.

use serde::{Deserialize, Serialize};
use weir_model::{Batch, Schema};

use super::range::RangeOperator;
use super::{Entrance, Print, Range, WindowContent, WindowKind};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::synopsis::fifo::Fifo;
use crate::synopsis::gather::whole_instants;

/// The rows in (τ - delay - size, τ - delay]; with a slide S, τ rounded down to a multiple of S
/// stands for τ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Delayed {
    /// The window at τ - delay, but with its slides at multiples of τ.
    pub range: Range,
    /// How long after its timestamp a row enters.
    pub delay: i64,
}

impl WindowKind for Delayed {
    fn text(&self, print: &Print<'_>) -> String {
        format!(
            "{} delay {}",
            self.range.text(print),
            (print.span)(self.delay)
        )
    }

    fn slide(&self) -> Option<i64> {
        self.range.slide()
    }

    fn entrance(&self) -> Entrance {
        Entrance {
            delay: self.delay,
            slide: self.range.slide,
        }
    }

    fn whole_slides(&self) -> Result<(Option<i64>, i64), String> {
        Err("its window lies in the past".into())
    }

    fn memory(&self) -> Option<i64> {
        Some(self.range.memory()?.saturating_add(self.delay))
    }

    fn content(&self) -> WindowContent {
        WindowContent::Instants(self.range.size.saturating_add(self.delay))
    }

    // Rows that wait would be missing for a query that starts later.
    fn is_fifo(&self) -> bool {
        false
    }

    fn commutes_with(&self, _: &Expr) -> bool {
        true
    }

    fn operator(&self, _: &Schema, _: i64) -> Box<dyn Operator> {
        Box::new(DelayedOperator {
            entrance: self.entrance(),
            waiting: Fifo::default(),
            range: RangeOperator::new(Some(self.range.size), self.range.slide),
        })
    }
}

/// A window over rows that arrive later than their timestamps.
struct DelayedOperator {
    entrance: Entrance,
    /// Rows that are too young.
    waiting: Fifo,
    range: RangeOperator,
}

impl DelayedOperator {
    /// When row `index` of those that wait enters; never, if there is none.
    fn enters(&self, index: usize) -> i64 {
        let ts = self.waiting.ts(index);
        ts.map_or(i64::MAX, |ts| self.entrance.of(ts))
    }
}

impl Operator for DelayedOperator {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        for batch in whole_instants(inputs[0]) {
            self.waiting.push(batch);
        }
        let due = match span.upto.checked_sub(self.entrance.delay) {
            Some(youngest) => self.waiting.take_until(youngest),
            None => Vec::new(),
        };
        let later = |batch: Batch| {
            let ts: Vec<i64> = batch.ts.iter().map(|ts| ts + self.entrance.delay).collect();
            Batch {
                ts: ts.into(),
                ..batch
            }
        };
        let due: Vec<Batch> = due.into_iter().map(later).collect();
        self.range.step(&[&due], span)
    }

    fn bound_span(&self, span: Span, rows_max: usize) -> i64 {
        // An instant is processed whole.
        let bound = self.enters(rows_max).saturating_sub(1).max(self.enters(0));
        self.range
            .bound_span(span, rows_max)
            .min(bound)
            .max(span.after + 1)
    }

    fn bytes(&self) -> usize {
        self.waiting.bytes() + self.range.bytes()
    }
}
