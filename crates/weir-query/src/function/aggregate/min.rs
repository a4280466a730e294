//! `min(x)`: the least value.

use super::extreme::Extreme;
use crate::function::{Example, FunctionDoc};

/// `min(x)`
pub static MIN: Extreme = Extreme {
    doc: &FunctionDoc {
        name: "min",
        aliases: &[],
        signature: "min(x)",
        summary: "the smallest value, in the order of ORDER BY",
        details: "Keeps the type and the unit of `x`. NaN is greater than every number. Texts are ordered by their bytes. \
              Over a window it stores every distinct value in it, 16 bytes each; without a window one value.",
        examples: &[
            Example::over("min(x)", "NaN\n2\n1", "1"),
            Example::over("min(x)", "b\na\nc", "a"),
            Example::over("min(x)", "NULL", "NULL"),
        ],
    },
    is_least: true,
};
