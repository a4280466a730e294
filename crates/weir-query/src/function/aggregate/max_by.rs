//! `max_by(x, y)`: `x` of the row with the greatest `y`.

use super::by::By;
use crate::function::{Example, FunctionDoc};

/// `max_by(x, y)`
pub static MAX_BY: By = By {
    doc: &FunctionDoc {
        name: "max_by",
        aliases: &["arg_max", "argmax"],
        signature: "max_by(x, y)",
        summary: "`x` of the row with the greatest `y`; of several such rows the greatest `x`",
        details: "Keeps the type and the unit of `x`. Rows in which either is NULL are ignored. It stores every distinct pair.",
        examples: &[
            Example::over("max_by(x, y)", "a,1\nb,2\nc,NULL", "b"),
            Example::over("max_by(x, y)", "5,1\n7,1", "7"),
        ],
    },
    is_least: false,
};
