//! `gib(x)`: the amount of data in GiB.

use super::UnaryFunction;
use super::scaled;
use crate::function::{Example, FunctionDoc};
use weir_model::Dimension;

/// `gib(x)`
pub static GIB: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "gib",
        aliases: &["gibibytes"],
        signature: "gib(x)",
        summary: "the amount of data in GiB",
        details: "A float without unit. `x` has any unit of the same dimension: `gib(bytes)`.",
        examples: &[
            Example::of("gib(4194304 sectors)", "2"),
            Example::of("gib(524288 KiB)", "0.5"),
        ],
    },
    check: |name, args| scaled::check(name, args, Dimension::Data, "an amount of data"),
    eval: |call, x| scaled::eval(call, x, 1073741824.0),
};
