//! `millis(x)`: the duration in milliseconds.

use super::UnaryFunction;
use super::scaled;
use crate::function::{Example, FunctionDoc};
use weir_model::Dimension;

/// `millis(x)`
pub static MILLIS: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "millis",
        aliases: &["milliseconds"],
        signature: "millis(x)",
        summary: "the duration in milliseconds",
        details: "A float without unit. `x` has any unit of the same dimension: `millis(latency)`.",
        examples: &[
            Example::of("millis(1500 us)", "1.5"),
            Example::of("millis(2 s)", "2000"),
        ],
    },
    check: |name, args| scaled::check(name, args, Dimension::Time, "a duration"),
    eval: |call, x| scaled::eval(call, x, 1e6),
};
