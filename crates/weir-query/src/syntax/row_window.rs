//! The windows of window functions: partition, order and frame, of OVER and WINDOW.

use super::ast::{Ident, OrderItem, Spanned, SpannedExpr};
use crate::plan::over::FrameUnit;

/// `w AS (PARTITION BY a ORDER BY b)` of WINDOW
#[derive(Clone, Debug, PartialEq)]
pub struct WindowDefinition {
    /// The name.
    pub name: Ident,
    /// What it names.
    pub window: RowWindow,
}

impl WindowDefinition {
    /// Whether this is its name, without regard to case.
    pub fn is_called(&self, name: &str) -> bool {
        self.name.value.eq_ignore_ascii_case(name)
    }
}

/// Which rows a window function sees, and in which order: `(w PARTITION BY a ORDER BY b ROWS ..)`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowWindow {
    /// The name of the window that it is based on.
    pub base: Option<Ident>,
    /// The name alone, without parentheses.
    pub is_bare: bool,
    /// PARTITION BY
    pub partition: Vec<SpannedExpr>,
    /// ORDER BY
    pub order_by: Vec<OrderItem>,
    /// `ROWS BETWEEN .. AND ..`, `RANGE BETWEEN .. AND ..`, `GROUPS BETWEEN .. AND ..`
    pub frame: Option<Spanned<FrameClause>>,
}

impl RowWindow {
    /// Its expressions.
    pub fn exprs(&self) -> impl Iterator<Item = &SpannedExpr> {
        let bounds = self.frame.iter().flat_map(|frame| {
            let FrameClause { start, end, .. } = &frame.value;
            [start, end].into_iter().filter_map(FrameBound::distance)
        });
        let order = self.order_by.iter().map(|key| &key.expr);
        self.partition.iter().chain(order).chain(bounds)
    }
}

/// The rows of a partition from which a window function is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameClause {
    /// ROWS, RANGE or GROUPS.
    pub unit: FrameUnit,
    /// The first row.
    pub start: FrameBound,
    /// The last row.
    pub end: FrameBound,
}

/// A bound of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameBound {
    /// `UNBOUNDED PRECEDING` of a start, `UNBOUNDED FOLLOWING` of an end
    Unbounded,
    /// `CURRENT ROW`
    CurrentRow,
    /// `2 PRECEDING`
    Preceding(SpannedExpr),
    /// `2 FOLLOWING`
    Following(SpannedExpr),
}

impl FrameBound {
    /// Its distance from the current row.
    pub fn distance(&self) -> Option<&SpannedExpr> {
        match self {
            FrameBound::Preceding(distance) | FrameBound::Following(distance) => Some(distance),
            FrameBound::Unbounded | FrameBound::CurrentRow => None,
        }
    }
}
