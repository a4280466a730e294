//! `ln(x)`: the natural logarithm.

use super::UnaryFunction;
use super::rows::map_floats;
use crate::function::arguments::number_to_float;
use crate::function::{Example, FunctionDoc};

/// `ln(x)`
pub static LN: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "ln",
        aliases: &[],
        signature: "ln(x)",
        summary: "the natural logarithm of `x`",
        details: "A float without unit. NULL for 0 and negative numbers.",
        examples: &[Example::of("ln(1)", "0"), Example::of("ln(0)", "NULL")],
    },
    check: number_to_float,
    eval: |_, x| map_floats(x, |x| if x > 0.0 { x.ln() } else { f64::NAN }),
};
