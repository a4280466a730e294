//! Comparisons that are valid and yet never what is intended: with NULL, and of a duration with a
//! small number without unit.

use weir_model::{Type, Unit};

use super::coerce::Operand;
use super::{Checker, Dialect};
use crate::diagnostic::codes;
use crate::expr::BinaryOp;
use crate::syntax::ast::{ExprKind, Literal, Number, SpannedExpr};

/// No request takes less than this number of nanoseconds.
const SHORTEST_NS: f64 = 1000.0;

impl Checker<'_> {
    /// Warns where `left op right` is a trap. `operands` are the checked sides.
    pub(super) fn warn_of_trap(
        &mut self,
        op: BinaryOp,
        left: &SpannedExpr,
        right: &SpannedExpr,
        operands: (&Operand, &Operand),
    ) {
        if !op.is_comparison() || self.options.dialect != Dialect::Cql {
            return;
        }
        let is_null = |x: &SpannedExpr| matches!(x.kind, ExprKind::Literal(Literal::Null));
        let other = match (is_null(left), is_null(right)) {
            (_, true) => Some(left),
            (true, false) => Some(right),
            _ => None,
        };
        if let Some(other) = other {
            let message = "a comparison with NULL is never true";
            let found = codes::NULL_COMPARED.at(left.span.to(right.span), message);
            self.diagnostics.push(match op {
                BinaryOp::Equal => found.help(format!("write `{other} IS NULL`")),
                BinaryOp::NotEqual => found.help(format!("write `{other} IS NOT NULL`")),
                _ => found.help("IS NULL tests for NULL"),
            });
            return;
        }
        self.warn_of_bare_number(operands.0, right);
        self.warn_of_bare_number(operands.1, left);
    }

    /// Warns where `number` is a small number without unit and `x` a duration.
    pub(super) fn warn_of_bare_number(&mut self, x: &Operand, number: &SpannedExpr) {
        let ExprKind::Literal(Literal::Number(value)) = &number.kind else {
            return;
        };
        let size = match *value {
            Number::Int(x) => x as f64,
            Number::Float(x) => x,
        };
        let is_duration = x.expr.unit() == Unit::Nanoseconds && x.expr.ty() != Type::Time;
        if !is_duration
            || size <= 0.0
            || size >= SHORTEST_NS
            || self.options.dialect != Dialect::Cql
        {
            return;
        }
        let message = format!("a number without unit is in nanoseconds here: {number} ns");
        let help = format!("write `{number} ms` or `{number} us`");
        self.diagnostics
            .push(codes::BARE_DURATION.at(number.span, message).help(help));
    }
}
