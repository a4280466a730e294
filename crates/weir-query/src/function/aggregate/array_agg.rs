//! `array_agg(x)`: the values of a group, as a text.

use super::list::List;
use crate::function::{Example, FunctionDoc};

/// `array_agg(x)`
pub static ARRAY_AGG: List = List {
    doc: &FunctionDoc {
        name: "array_agg",
        aliases: &["list"],
        signature: "array_agg(x)",
        summary: "the values in their order, as the text of a list",
        details: "CQL has no arrays: the result is a text such as `[1, 2]`, without units. NULLs are ignored. A list ends with `..` instead of the value that would make it longer than 1000 bytes. It stores every distinct value.",
        examples: &[
            Example::over("array_agg(x)", "8\n4\n8", "[4, 8, 8]"),
            Example::over("array_agg(x)", "r\nNULL\nf", "[f, r]"),
            Example::over("array_agg(x)", "NULL", "NULL"),
        ],
    },
    is_array: true,
};
