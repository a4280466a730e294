//! Changing the operands of an expression.

use super::ast::{ExprKind, SpannedExpr};

impl ExprKind {
    /// Calls `change` with each direct operand. Those of subqueries and of calls with OVER are left
    /// out.
    pub fn change(&mut self, change: &mut impl FnMut(&mut SpannedExpr)) {
        match self {
            ExprKind::Column { .. }
            | ExprKind::Literal(_)
            | ExprKind::Rows(_)
            | ExprKind::Exists { .. }
            | ExprKind::Scalar { .. }
            | ExprKind::Over(_)
            | ExprKind::Error => {}
            ExprKind::Unary { expr, .. }
            | ExprKind::IsNull { expr, .. }
            | ExprKind::InQuery { expr, .. }
            | ExprKind::Cast { expr, .. } => change(expr),
            ExprKind::Binary { left, right, .. } => {
                change(left);
                change(right);
            }
            ExprKind::Between {
                expr, low, high, ..
            } => {
                change(expr);
                change(low);
                change(high);
            }
            ExprKind::InList { expr, list, .. } => {
                change(expr);
                list.iter_mut().for_each(change);
            }
            ExprKind::Like { expr, pattern, .. } => {
                change(expr);
                change(pattern);
            }
            ExprKind::Case {
                operand,
                branches,
                otherwise,
            } => {
                operand.iter_mut().for_each(|x| change(x));
                for (when, then) in branches {
                    change(when);
                    change(then);
                }
                otherwise.iter_mut().for_each(|x| change(x));
            }
            ExprKind::Call { args, filter, .. } => {
                args.iter_mut().for_each(&mut *change);
                filter.iter_mut().for_each(|x| change(x));
            }
        }
    }
}
