//! `[Now]`: the rows of one instant.

use serde::{Deserialize, Serialize};
use weir_model::Schema;

use super::range::RangeOperator;
use super::{Print, WindowContent, WindowKind};
use crate::expr::Expr;
use crate::operator::Operator;

/// The rows at τ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Now;

impl WindowKind for Now {
    fn text(&self, _: &Print<'_>) -> String {
        "now".into()
    }

    // Its content at an instant leaves at the next.
    fn memory(&self) -> Option<i64> {
        Some(1)
    }

    fn content(&self) -> WindowContent {
        WindowContent::Instant
    }

    fn commutes_with(&self, _: &Expr) -> bool {
        true
    }

    // Instants are integers: the rows at τ are those in (τ - 1, τ].
    fn operator(&self, _: &Schema, _: i64) -> Box<dyn Operator> {
        Box::new(RangeOperator::new(Some(1), None))
    }
}
