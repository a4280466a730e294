//! `seconds(x)`: the duration in seconds.

use super::UnaryFunction;
use super::scaled;
use crate::function::{Example, FunctionDoc};
use weir_model::Dimension;

/// `seconds(x)`
pub static SECONDS: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "seconds",
        aliases: &[],
        signature: "seconds(x)",
        summary: "the duration in seconds",
        details: "A float without unit. `x` has any unit of the same dimension: `seconds(latency)`.",
        examples: &[
            Example::of("seconds(1500 ms)", "1.5"),
            Example::of("seconds(250 us)", "0.00025"),
        ],
    },
    check: |name, args| scaled::check(name, args, Dimension::Time, "a duration"),
    eval: |call, x| scaled::eval(call, x, 1e9),
};
