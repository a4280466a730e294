//! `last(x)`: the value that arrived last.

use super::arrivals::ArrivalEnd;
use crate::function::{Example, FunctionDoc};

/// `last(x)`
pub static LAST: ArrivalEnd = ArrivalEnd {
    doc: &FunctionDoc {
        name: "last",
        aliases: &["last_value"],
        signature: "last(x)",
        summary: "the value that arrived last",
        details: "NULLs are ignored, as by every aggregate. Keeps the type and the unit of `x`. Of equal values the one that arrived first is retracted \
              first, as in a window. Over a window it stores every row's value; without a window one value. Rows of one instant have \
              no defined order, so between rows of one instant the result can differ from run to run.",
        examples: &[
            Example::over("last(x)", "30\n10\n20\nNULL", "20"),
            Example::over("last(x)", "NULL", "NULL"),
        ],
    },
    is_first: false,
};
