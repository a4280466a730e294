//! `greatest(x, y, ..)`: the largest of its arguments.

use super::pick::Pick;
use crate::function::{Example, FunctionDoc};

/// `greatest(x, y, ..)`
pub static GREATEST: Pick = Pick {
    doc: &FunctionDoc {
        name: "greatest",
        aliases: &[],
        signature: "greatest(x, y, ..)",
        summary: "the largest of its arguments",
        details: "NULLs are ignored; the result is NULL if all arguments are. The arguments have one type; integers are converted to float beside floats, and NaN is greater than every number. The result has the finest of their units.",
        examples: &[
            Example::of("greatest(3, 1, 2)", "3"),
            Example::of("greatest(1.5, 2)", "2"),
            Example::of("greatest(NULL, 7)", "7"),
            Example::of("greatest(NULL)", "NULL"),
            Example::of("greatest(8 sectors, 1 KiB)", "4096"),
        ],
    },
    is_least: false,
};
