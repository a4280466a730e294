//! `[Range N]` and `[Range N Slide S]`. [`RangeOperator`] runs [`super::Now`] and
//! [`super::Unbounded`] too.
//!
//! A row with timestamp t is in the relation from t until t + N, both rounded up to a multiple of S
//! where there is a slide: τ rounded down to a multiple of S stands for τ, and then t <= τ < t + N.

use serde::{Deserialize, Serialize};
use weir_model::{Batch, Schema};

use super::merge::merge;
use super::{PANES_MAX, Print, Window, WindowContent, WindowKind, round_down, round_up};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Held, Operator, Span};
use crate::synopsis::fifo::Fifo;
use crate::synopsis::gather::{take_batch, whole_instants};

/// The rows in (τ - size, τ]; with a slide S, τ rounded down to a multiple of S stands for τ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Range {
    /// The length.
    pub size: i64,
    /// The relation changes only at multiples of this.
    pub slide: Option<i64>,
}

impl WindowKind for Range {
    fn text(&self, print: &Print<'_>) -> String {
        format!(
            "range {}{}",
            (print.span)(self.size),
            print.slide(self.slide)
        )
    }

    fn slide(&self) -> Option<i64> {
        self.slide
    }

    fn with_slide(&self, every: i64) -> Option<Window> {
        (self.slide.is_none()).then(|| Window::range(self.size, Some(every)))
    }

    fn contains_all_at_multiples(&self, every: i64) -> bool {
        self.size >= every
    }

    fn whole_slides(&self) -> Result<(Option<i64>, i64), String> {
        let slide = self.slide.ok_or(super::NO_SLIDE)?;
        if self.size % slide != 0 {
            return Err("its window is not a multiple of the slide".into());
        }
        if self.size / slide > PANES_MAX {
            return Err(format!("its window spans more than {PANES_MAX} slides"));
        }
        Ok((Some(self.size), slide))
    }

    fn memory(&self) -> Option<i64> {
        Some(self.size.saturating_add(self.slide.unwrap_or(0)))
    }

    fn content(&self) -> WindowContent {
        WindowContent::Instants(self.size)
    }

    fn commutes_with(&self, _: &Expr) -> bool {
        true
    }

    fn operator(&self, _: &Schema, _: i64) -> Box<dyn Operator> {
        Box::new(RangeOperator::new(Some(self.size), self.slide))
    }
}

/// The rows of the last N instants.
pub(super) struct RangeOperator {
    size: Option<i64>,
    slide: Option<i64>,
    /// Rows that wait for the next multiple of the slide.
    pending: Fifo,
    /// Rows in the relation that will leave it.
    inside: Fifo,
}

impl RangeOperator {
    /// A window of `size` instants (`None`: unbounded) that moves at multiples of `slide` (`None`:
    /// always).
    pub(super) fn new(size: Option<i64>, slide: Option<i64>) -> RangeOperator {
        RangeOperator {
            size,
            slide,
            pending: Fifo::default(),
            inside: Fifo::default(),
        }
    }

    /// When a row of instant `ts` enters.
    fn enters(&self, ts: i64) -> i64 {
        round_up(ts, self.slide)
    }

    /// When it leaves; a row that would leave after the last instant never does.
    fn leaves(&self, ts: i64) -> Option<i64> {
        let end = ts.checked_add(self.size?)?;
        Some(round_up(end, self.slide)).filter(|&end| end < i64::MAX)
    }

    /// The rows that enter the relation: with a slide longer than the window some never do.
    fn seen(&self, batch: &Batch) -> Batch {
        if !matches!((self.size, self.slide), (Some(size), Some(slide)) if size < slide) {
            return batch.clone();
        }
        let seen = |row: &u32| {
            let ts = batch.ts[*row as usize];
            self.leaves(ts).is_none_or(|end| self.enters(ts) < end)
        };
        let rows: Vec<u32> = (0..batch.len() as u32).filter(seen).collect();
        take_batch(batch, &rows)
    }

    /// The rows with other timestamps, which a slide may have made equal.
    fn moved(&self, batches: Vec<Batch>, instant: impl Fn(i64) -> i64) -> Vec<Batch> {
        let shift = |b: Batch| {
            let ts: Vec<i64> = b.ts.iter().map(|&t| instant(t)).collect();
            Batch { ts: ts.into(), ..b }
        };
        let moved: Vec<Batch> = batches.into_iter().map(shift).collect();
        if self.slide.is_some() {
            whole_instants(&moved)
        } else {
            moved
        }
    }
}

impl Operator for RangeOperator {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        // Rows have entered, or left, up to here.
        let cut = round_down(span.upto, self.slide);
        let arrived = whole_instants(inputs[0]);
        let entering = match self.slide {
            None => arrived,
            Some(_) => {
                for batch in &arrived {
                    self.pending.push(self.seen(batch));
                }
                self.pending.take_until(cut)
            }
        };
        let Some(size) = self.size else {
            return Ok(self.moved(entering, |t| self.enters(t)));
        };
        for batch in &entering {
            self.inside.push(batch.clone());
        }
        let leaving = match cut.checked_sub(size) {
            Some(oldest) => self.inside.take_until(oldest),
            None => Vec::new(),
        };
        let leaving = self.moved(leaving, |t| self.leaves(t).unwrap_or(i64::MAX));
        let entering = match self.slide {
            None => entering,
            Some(_) => self.moved(entering, |t| self.enters(t)),
        };
        Ok(merge(entering, leaving))
    }

    fn bound_span(&self, span: Span, rows_max: usize) -> i64 {
        let leave = self.inside.ts(rows_max).and_then(|ts| self.leaves(ts));
        let enter = self.pending.ts(rows_max).map(|ts| self.enters(ts));
        // The instant of row `rows_max` may be that of rows before it; then that instant is
        // processed whole.
        let first = [
            self.inside.ts(0).and_then(|ts| self.leaves(ts)),
            self.pending.ts(0).map(|ts| self.enters(ts)),
        ];
        let bound = |at: Option<i64>, first: Option<i64>| match (at, first) {
            (Some(at), Some(first)) => (at - 1).max(first),
            _ => i64::MAX,
        };
        span.upto
            .min(bound(leave, first[0]))
            .min(bound(enter, first[1]))
            .max(span.after + 1)
    }

    fn held(&self) -> Held {
        Held {
            pending: self.pending.len(),
            inside: self.inside.len(),
        }
    }

    fn bytes(&self) -> usize {
        self.pending.bytes() + self.inside.bytes()
    }
}
