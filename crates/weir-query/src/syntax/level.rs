//! Operator precedence, lowest first, for the parser's precedence climbing and the printer's
//! parentheses.

use crate::expr::BinaryOp;

pub(super) const OR: u8 = 1;
pub(super) const AND: u8 = 2;
pub(super) const NOT: u8 = 3;
/// `=`, `<` and the other comparisons, IS, IN, BETWEEN, LIKE.
pub(super) const COMPARISON: u8 = 4;
pub(super) const CONCAT: u8 = 5;
pub(super) const SUM: u8 = 6;
pub(super) const PRODUCT: u8 = 7;
/// `-x`
pub(super) const SIGN: u8 = 8;
/// Expressions that never need parentheses.
pub(super) const PRIMARY: u8 = 9;

/// The precedence of a binary operator.
pub(super) fn of(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::Or => OR,
        BinaryOp::And => AND,
        BinaryOp::Concat => CONCAT,
        BinaryOp::Add | BinaryOp::Subtract => SUM,
        BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Modulo => PRODUCT,
        _ => COMPARISON,
    }
}
