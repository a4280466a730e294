//! `abs(x)`: the distance from zero.

use super::UnaryFunction;
use super::rows::{map, overflow};
use crate::function::arguments::number_kept;
use crate::function::{Example, FunctionDoc};
use weir_model::Type;

/// `abs(x)`
pub static ABS: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "abs",
        aliases: &[],
        signature: "abs(x)",
        summary: "the absolute value of `x`",
        details: "Keeps the type and the unit of `x`.",
        examples: &[Example::of("abs(-3)", "3"), Example::of("abs(-2.5)", "2.5")],
    },
    check: number_kept,
    eval: |call, x| match call.ty {
        Type::Float => map(Type::Float, x, |x: f64| Ok(Some(x.abs()))),
        _ => map(Type::Int, x, |x: i64| {
            x.checked_abs().map(Some).ok_or_else(|| overflow(call))
        }),
    },
};
