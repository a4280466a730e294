//! `least(x, y, ..)`: the smallest of its arguments.

use super::pick::Pick;
use crate::function::{Example, FunctionDoc};

/// `least(x, y, ..)`
pub static LEAST: Pick = Pick {
    doc: &FunctionDoc {
        name: "least",
        aliases: &[],
        signature: "least(x, y, ..)",
        summary: "the smallest of its arguments",
        details: "NULLs are ignored; the result is NULL if all arguments are. The arguments have one type; integers are converted to float beside floats, and NaN is greater than every number. The result has the finest of their units.",
        examples: &[
            Example::of("least(3, 1, 2)", "1"),
            Example::of("least(1.5, 2)", "1.5"),
            Example::of("least(NULL, 7)", "7"),
            Example::of("least('b', 'a')", "a"),
            Example::of("least(1 ms, 20 us)", "20000"),
        ],
    },
    is_least: true,
};
