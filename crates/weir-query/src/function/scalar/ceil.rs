//! `ceil(x)`: the least integer not below x.

use super::UnaryFunction;
use super::rows::map_fractions;
use crate::function::arguments::number_kept;
use crate::function::{Example, FunctionDoc};

/// `ceil(x)`
pub static CEIL: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "ceil",
        aliases: &["ceiling"],
        signature: "ceil(x)",
        summary: "the smallest integer that is not less than `x`",
        details: "Keeps the type and the unit of `x`.",
        examples: &[
            Example::of("ceil(2.1)", "3"),
            Example::of("ceil(-2.7)", "-2"),
            Example::of("ceil(5)", "5"),
        ],
    },
    check: number_kept,
    eval: |_, x| map_fractions(x, f64::ceil),
};
