//! [`Ranges`]: an argument that is a constant for each range of a column's values, such as
//! `case when seek = 1 then 1 else 0 end`. Its aggregate is computed from the number of values in
//! each range, which a source can count without a row for each value.

use weir_model::{Fold, FoldCall, PartialKind, Value};

use super::fold::ValueLocation;
use crate::expr::{BinaryOp, Expr, UnaryOp, fold_expr};

/// The ranges of a column's values, and the constant for each.
pub struct Ranges {
    /// The column, by position.
    pub column: usize,
    /// The upper limits, ascending; a last range has no limit.
    limits: Vec<i64>,
    /// The constant of each range, and then that of NULL.
    constants: Vec<Option<i64>>,
}

impl Ranges {
    /// The ranges of `case`, if it compares one column of integers with constants and its results
    /// are integers or NULL.
    pub fn of(case: &Expr) -> Option<Ranges> {
        let Expr::Case {
            branches,
            otherwise,
            ..
        } = case
        else {
            return None;
        };
        let mut found = Comparisons::default();
        for (condition, result) in branches {
            found.add(condition)?;
            constant(result)?;
        }
        otherwise.as_deref().map_or(Some(None), constant)?;
        let column = found.column?;
        // Values on the same side of each constant have the same result.
        let constants = found.constants.into_iter();
        let mut limits: Vec<i64> = constants
            .flat_map(|value| [Some(value), value.checked_sub(1)])
            .flatten()
            .collect();
        if limits.is_empty() {
            // Only NULL differs.
            limits.push(0);
        }
        limits.sort_unstable();
        limits.dedup();
        let above = limits.last().map(|last| last.saturating_add(1));
        let values = limits.iter().copied().chain(above).map(Value::Int);
        let constants = values.chain([Value::Null]);
        let constants = constants.map(|value| constant(&with_value(case, &value)));
        Some(Ranges {
            column,
            constants: constants.collect::<Option<_>>()?,
            limits,
        })
    }

    /// The values to keep.
    pub fn required(&self) -> FoldCall {
        FoldCall {
            column: Some(self.column),
            keep: PartialKind::Limits(self.limits.clone()),
        }
    }

    /// Their location in a fold, if that has them.
    pub fn locate(&self, fold: &Fold) -> Option<ValueLocation> {
        let required = self.required();
        let counts = fold.calls.iter().position(|call| *call == required)?;
        Some(ValueLocation::Ranges {
            counts,
            constants: self.constants.clone(),
        })
    }
}

/// The column that conditions compare with constants, and the constants.
#[derive(Default)]
struct Comparisons {
    column: Option<usize>,
    constants: Vec<i64>,
}

impl Comparisons {
    /// Adds those of a condition; `None` if it contains anything else.
    fn add(&mut self, condition: &Expr) -> Option<()> {
        match condition {
            Expr::Unary {
                op: UnaryOp::Not,
                expr,
            } => self.add(expr),
            Expr::Binary {
                op: BinaryOp::And | BinaryOp::Or,
                left,
                right,
                ..
            } => {
                self.add(left)?;
                self.add(right)
            }
            Expr::Binary {
                op, left, right, ..
            } if op.is_comparison() => match (&**left, &**right) {
                (column, Expr::Literal { value, .. }) | (Expr::Literal { value, .. }, column) => {
                    self.compare(column, [value])
                }
                _ => None,
            },
            Expr::IsNull { expr, .. } => self.compare(expr, []),
            Expr::InList { expr, list, .. } => self.compare(expr, list),
            _ => None,
        }
    }

    fn compare<'v>(
        &mut self,
        column: &Expr,
        values: impl IntoIterator<Item = &'v Value>,
    ) -> Option<()> {
        let Expr::Column { index, .. } = column else {
            return None;
        };
        if *self.column.get_or_insert(*index) != *index {
            return None;
        }
        for value in values {
            match value {
                Value::Int(value) => self.constants.push(*value),
                Value::Null => {}
                _ => return None,
            }
        }
        Some(())
    }
}

/// The value of a constant integer or NULL.
fn constant(expr: &Expr) -> Option<Option<i64>> {
    match expr {
        Expr::Literal {
            value: Value::Int(value),
            ..
        } => Some(Some(*value)),
        Expr::Literal {
            value: Value::Null, ..
        } => Some(None),
        _ => None,
    }
}

/// The expression where its columns have this value.
fn with_value(expr: &Expr, value: &Value) -> Expr {
    expr.map(&|expr| match expr {
        Expr::Column { ty, unit, .. } => Expr::Literal {
            value: value.clone(),
            ty,
            unit,
        },
        other => fold_expr(other),
    })
}
