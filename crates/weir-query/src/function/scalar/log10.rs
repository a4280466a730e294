//! `log10(x)`: the logarithm to base 10.

use super::UnaryFunction;
use super::rows::map_floats;
use crate::function::arguments::number_to_float;
use crate::function::{Example, FunctionDoc};

/// `log10(x)`
pub static LOG10: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "log10",
        aliases: &["log"],
        signature: "log10(x)",
        summary: "the logarithm of `x` to base 10",
        details: "A float without unit. NULL for 0 and negative numbers.",
        examples: &[
            Example::of("log10(1000)", "3"),
            Example::of("log10(0)", "NULL"),
        ],
    },
    check: number_to_float,
    eval: |_, x| map_floats(x, |x| if x > 0.0 { x.log10() } else { f64::NAN }),
};
