//! `log2(x)`: the logarithm to base 2.

use super::UnaryFunction;
use super::rows::map_floats;
use crate::function::arguments::number_to_float;
use crate::function::{Example, FunctionDoc};

/// `log2(x)`
pub static LOG2: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "log2",
        aliases: &[],
        signature: "log2(x)",
        summary: "the logarithm of `x` to base 2",
        details: "A float without unit. NULL for 0 and negative numbers.",
        examples: &[
            Example::of("log2(4096)", "12"),
            Example::of("log2(-1)", "NULL"),
        ],
    },
    check: number_to_float,
    eval: |_, x| map_floats(x, |x| if x > 0.0 { x.log2() } else { f64::NAN }),
};
