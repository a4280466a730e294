//! `exp(x)`: e to the power of x.

use super::UnaryFunction;
use super::rows::map_floats;
use crate::function::arguments::number_to_float;
use crate::function::{Example, FunctionDoc};

/// `exp(x)`
pub static EXP: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "exp",
        aliases: &[],
        signature: "exp(x)",
        summary: "e to the power of `x`",
        details: "A float without unit; infinite on overflow.",
        examples: &[Example::of("exp(0)", "1"), Example::of("ln(exp(2))", "2")],
    },
    check: number_to_float,
    eval: |_, x| map_floats(x, f64::exp),
};
