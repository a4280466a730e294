//! `mib(x)`: the amount of data in MiB.

use super::UnaryFunction;
use super::scaled;
use crate::function::{Example, FunctionDoc};
use weir_model::Dimension;

/// `mib(x)`
pub static MIB: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "mib",
        aliases: &["mebibytes"],
        signature: "mib(x)",
        summary: "the amount of data in MiB",
        details: "A float without unit. `x` has any unit of the same dimension: `mib(bytes)`.",
        examples: &[
            Example::of("mib(2048 sectors)", "1"),
            Example::of("mib(1536 KiB)", "1.5"),
        ],
    },
    check: |name, args| scaled::check(name, args, Dimension::Data, "an amount of data"),
    eval: |call, x| scaled::eval(call, x, 1048576.0),
};
