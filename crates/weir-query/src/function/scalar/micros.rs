//! `micros(x)`: the duration in microseconds.

use super::UnaryFunction;
use super::scaled;
use crate::function::{Example, FunctionDoc};
use weir_model::Dimension;

/// `micros(x)`
pub static MICROS: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "micros",
        aliases: &["microseconds"],
        signature: "micros(x)",
        summary: "the duration in microseconds",
        details: "A float without unit. `x` has any unit of the same dimension: `micros(latency)`.",
        examples: &[
            Example::of("micros(1500 ns)", "1.5"),
            Example::of("micros(2 ms)", "2000"),
        ],
    },
    check: |name, args| scaled::check(name, args, Dimension::Time, "a duration"),
    eval: |call, x| scaled::eval(call, x, 1e3),
};
