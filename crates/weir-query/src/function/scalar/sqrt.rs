//! `sqrt(x)`: the square root.

use super::UnaryFunction;
use super::rows::map_floats;
use crate::function::arguments::number_to_float;
use crate::function::{Example, FunctionDoc};

/// `sqrt(x)`
pub static SQRT: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "sqrt",
        aliases: &[],
        signature: "sqrt(x)",
        summary: "the square root of `x`",
        details: "A float without unit. NULL for a negative number.",
        examples: &[Example::of("sqrt(9)", "3"), Example::of("sqrt(-1)", "NULL")],
    },
    check: number_to_float,
    eval: |_, x| map_floats(x, f64::sqrt),
};
