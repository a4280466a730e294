//! Window functions, the calls with `OVER`: each row of a relation with a value that is computed
//! from the rows of its partition, in an order.

use serde::{Deserialize, Serialize};
use weir_model::{Field, Type, Unit};

use super::OrderBy;
use super::print::{call_text, order_keys, show};
use crate::expr::Expr;
use crate::function::AggregateCall;

/// How the window functions of a node see the rows of a relation.
///
/// Rows with equal sort keys are peers. They follow each other in the order of all their columns,
/// so that the position of a row is defined by its content.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Partitioning {
    /// Rows that agree in all of these are a partition; NULLs agree.
    pub keys: Vec<Expr>,
    /// The order of the rows of a partition, most significant first.
    pub order: Vec<OrderBy>,
}

/// A call of a window function.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OverCall {
    /// The function.
    pub function: OverFunction,
    /// The rows from which it is computed, for functions of a frame.
    pub frame: RowFrame,
}

/// A window function with its arguments, over the input's columns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OverFunction {
    /// The position of the row in its partition, from 1.
    RowNumber,
    /// The position of its first peer.
    Rank,
    /// The number of groups of peers up to its own.
    DenseRank,
    /// The value of another row of the partition: `lag` and `lead`.
    Offset {
        /// The value.
        value: Expr,
        /// The position of that row relative to the current one; negative is before it.
        rows: i64,
        /// The value where there is no such row; NULL without.
        default: Option<Expr>,
    },
    /// The value of the first row of the frame.
    First(Expr),
    /// The value of the last row of the frame.
    Last(Expr),
    /// An aggregate of the rows of the frame, in their order.
    Aggregate(AggregateCall),
    /// The number of the row's part, of this many parts of equal size, from 1.
    Ntile(i64),
    /// The share of the other rows that are before its first peer.
    PercentRank,
    /// The share of the rows up to its last peer.
    CumeDist,
    /// The value of the row at this position of the frame, from 1.
    Nth(Expr, i64),
}

/// Consecutive rows of a partition, relative to a current row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowFrame {
    /// What the bounds count.
    pub unit: FrameUnit,
    /// The first row; `None` is the first of the partition.
    pub start: Option<i64>,
    /// The last row; `None` is the last of the partition.
    pub end: Option<i64>,
}

/// What the bounds of a frame count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FrameUnit {
    /// Rows: 0 is the current one, 1 the next.
    Rows,
    /// Distances of the sort key from that of the current row, in the direction of the order: 0 is
    /// its peers.
    Range,
    /// Groups of peers: 0 is that of the current row, 1 the next.
    Groups,
}

impl RowFrame {
    /// From the first row of the partition to the last peer of the current row: without ORDER BY
    /// all rows. The frame where none is given, as in SQL.
    pub const UP_TO_PEERS: RowFrame = RowFrame {
        unit: FrameUnit::Range,
        start: None,
        end: Some(0),
    };

    /// Whether it compares the sort key with that of the current row plus a distance.
    pub fn has_distance(&self) -> bool {
        let distance = |bound: Option<i64>| bound.is_some_and(|by| by != 0);
        self.unit == FrameUnit::Range && (distance(self.start) || distance(self.end))
    }

    fn text(&self) -> String {
        let bound = |bound: Option<i64>, all: &str| match bound {
            None => format!("unbounded {all}"),
            Some(0) => "current row".into(),
            Some(by) if by < 0 => format!("{} preceding", by.unsigned_abs()),
            Some(by) => format!("{by} following"),
        };
        let unit = match self.unit {
            FrameUnit::Rows => "rows",
            FrameUnit::Range => "range",
            FrameUnit::Groups => "groups",
        };
        let (start, end) = (bound(self.start, "preceding"), bound(self.end, "following"));
        format!("{unit} between {start} and {end}")
    }
}

impl OverFunction {
    /// The type and unit of its result.
    pub fn returns(&self) -> (Type, Unit) {
        match self {
            OverFunction::RowNumber
            | OverFunction::Rank
            | OverFunction::DenseRank
            | OverFunction::Ntile(_) => (Type::Int, Unit::None),
            OverFunction::PercentRank | OverFunction::CumeDist => (Type::Float, Unit::None),
            OverFunction::Offset { value, .. }
            | OverFunction::First(value)
            | OverFunction::Last(value)
            | OverFunction::Nth(value, _) => (value.ty(), value.unit()),
            OverFunction::Aggregate(call) => (call.ty, call.unit),
        }
    }

    /// Whether its result is computed from the rows of a frame.
    pub fn has_frame(&self) -> bool {
        matches!(
            self,
            OverFunction::First(_)
                | OverFunction::Last(_)
                | OverFunction::Nth(..)
                | OverFunction::Aggregate(_)
        )
    }

    /// Whether its result can be NULL.
    pub fn is_nullable(&self) -> bool {
        match self {
            OverFunction::Aggregate(call) => call.function.doc().name != "count",
            OverFunction::Offset { .. }
            | OverFunction::First(_)
            | OverFunction::Last(_)
            | OverFunction::Nth(..) => true,
            _ => false,
        }
    }

    /// Its arguments.
    pub fn exprs_mut(&mut self) -> Vec<&mut Expr> {
        match self {
            OverFunction::Offset { value, default, .. } => {
                [value].into_iter().chain(default).collect()
            }
            OverFunction::First(value)
            | OverFunction::Last(value)
            | OverFunction::Nth(value, _) => {
                vec![value]
            }
            OverFunction::Aggregate(call) => call.args.iter_mut().collect(),
            _ => Vec::new(),
        }
    }
}

impl Partitioning {
    /// Its expressions.
    pub fn exprs_mut(&mut self) -> impl Iterator<Item = &mut Expr> {
        let order = self.order.iter_mut().map(|key| &mut key.expr);
        self.keys.iter_mut().chain(order)
    }

    /// `partition by vm order by ts`, or nothing.
    pub(super) fn text(&self, fields: &[Field]) -> String {
        let keys = self.keys.iter().map(|key| show(key, fields).to_string());
        let keys = keys.collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        if !keys.is_empty() {
            parts.push(format!("partition by {keys}"));
        }
        if !self.order.is_empty() {
            parts.push(format!("order by {}", order_keys(&self.order, fields)));
        }
        parts.join(" ")
    }
}

impl OverCall {
    /// `sum(bytes) rows between 2 preceding and current row`
    pub(super) fn text(&self, fields: &[Field]) -> String {
        let of = |name: &str, value: &Expr| format!("{name}({})", show(value, fields));
        let text = match &self.function {
            OverFunction::RowNumber => "row_number()".into(),
            OverFunction::Rank => "rank()".into(),
            OverFunction::DenseRank => "dense_rank()".into(),
            OverFunction::Ntile(parts) => format!("ntile({parts})"),
            OverFunction::PercentRank => "percent_rank()".into(),
            OverFunction::CumeDist => "cume_dist()".into(),
            OverFunction::Nth(value, n) => format!("nth_value({}, {n})", show(value, fields)),
            OverFunction::Offset {
                value,
                rows,
                default,
            } => {
                let name = if *rows > 0 { "lead" } else { "lag" };
                let default = default.iter().map(|d| format!(", {}", show(d, fields)));
                let (value, rows) = (show(value, fields), rows.unsigned_abs());
                format!("{name}({value}, {rows}{})", default.collect::<String>())
            }
            OverFunction::First(value) => of("first_value", value),
            OverFunction::Last(value) => of("last_value", value),
            OverFunction::Aggregate(call) => call_text(call, fields),
        };
        match self.function.has_frame() && self.frame != RowFrame::UP_TO_PEERS {
            true => format!("{text} {}", self.frame.text()),
            false => text,
        }
    }
}
