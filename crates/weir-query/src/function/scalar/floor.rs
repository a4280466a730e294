//! `floor(x)`: the greatest integer not above x.

use super::UnaryFunction;
use super::rows::map_fractions;
use crate::function::arguments::number_kept;
use crate::function::{Example, FunctionDoc};

/// `floor(x)`
pub static FLOOR: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "floor",
        aliases: &[],
        signature: "floor(x)",
        summary: "the largest integer that is not greater than `x`",
        details: "Keeps the type and the unit of `x`.",
        examples: &[
            Example::of("floor(2.7)", "2"),
            Example::of("floor(-2.7)", "-3"),
            Example::of("floor(5)", "5"),
        ],
    },
    check: number_kept,
    eval: |_, x| map_fractions(x, f64::floor),
};
