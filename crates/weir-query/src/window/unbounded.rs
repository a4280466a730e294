//! `[Range Unbounded]` and `[Range Unbounded Slide S]`.

use serde::{Deserialize, Serialize};
use weir_model::Schema;

use super::range::RangeOperator;
use super::{Print, Window, WindowContent, WindowKind};
use crate::expr::Expr;
use crate::operator::Operator;

/// All rows so far; with a slide S, all up to τ rounded down to a multiple of S.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unbounded {
    /// The relation changes only at multiples of this.
    pub slide: Option<i64>,
}

impl WindowKind for Unbounded {
    fn text(&self, print: &Print<'_>) -> String {
        format!("range unbounded{}", print.slide(self.slide))
    }

    fn slide(&self) -> Option<i64> {
        self.slide
    }

    fn with_slide(&self, every: i64) -> Option<Window> {
        (self.slide.is_none()).then(|| Window::unbounded(Some(every)))
    }

    fn contains_all_at_multiples(&self, _: i64) -> bool {
        true
    }

    fn whole_slides(&self) -> Result<(Option<i64>, i64), String> {
        let slide = self.slide.ok_or(super::NO_SLIDE)?;
        Ok((None, slide))
    }

    fn content(&self) -> WindowContent {
        WindowContent::All
    }

    fn commutes_with(&self, _: &Expr) -> bool {
        true
    }

    fn operator(&self, _: &Schema, _: i64) -> Box<dyn Operator> {
        Box::new(RangeOperator::new(None, self.slide))
    }
}
