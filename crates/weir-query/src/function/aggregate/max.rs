//! `max(x)`: the greatest value.

use super::extreme::Extreme;
use crate::function::{Example, FunctionDoc};

/// `max(x)`
pub static MAX: Extreme = Extreme {
    doc: &FunctionDoc {
        name: "max",
        aliases: &[],
        signature: "max(x)",
        summary: "the largest value, in the order of ORDER BY",
        details: "Keeps the type and the unit of `x`. NaN is greater than every number. Texts are ordered by their bytes. \
              Over a window it stores every distinct value in it, 16 bytes each; without a window one value.",
        examples: &[
            Example::over("max(x)", "1\n3\n2", "3"),
            Example::over("max(x)", "b\na\nc", "c"),
            Example::over("max(x)", "NULL", "NULL"),
        ],
    },
    is_least: false,
};
