//! `first(x)`: the value that arrived first.

use super::arrivals::ArrivalEnd;
use crate::function::{Example, FunctionDoc};

/// `first(x)`
pub static FIRST: ArrivalEnd = ArrivalEnd {
    doc: &FunctionDoc {
        name: "first",
        aliases: &["first_value"],
        signature: "first(x)",
        summary: "the value that arrived first",
        details: "NULLs are ignored, as by every aggregate. Keeps the type and the unit of `x`. Of equal values the one that arrived first is retracted \
              first, as in a window. Over a window it stores every row's value; without a window one value. Rows of one instant have \
              no defined order, so between rows of one instant the result can differ from run to run.",
        examples: &[
            Example::over("first(x)", "30\n10\n20\nNULL", "30"),
            Example::over("first(x)", "NULL", "NULL"),
        ],
    },
    is_first: true,
};
