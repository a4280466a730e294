//! `kib(x)`: the amount of data in KiB.

use super::UnaryFunction;
use super::scaled;
use crate::function::{Example, FunctionDoc};
use weir_model::Dimension;

/// `kib(x)`
pub static KIB: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "kib",
        aliases: &["kibibytes"],
        signature: "kib(x)",
        summary: "the amount of data in KiB",
        details: "A float without unit. `x` has any unit of the same dimension: `kib(bytes)`.",
        examples: &[
            Example::of("kib(8 sectors)", "4"),
            Example::of("kib(512 B)", "0.5"),
        ],
    },
    check: |name, args| scaled::check(name, args, Dimension::Data, "an amount of data"),
    eval: |call, x| scaled::eval(call, x, 1024.0),
};
