//! `min_by(x, y)`: `x` of the row with the least `y`.

use super::by::By;
use crate::function::{Example, FunctionDoc};

/// `min_by(x, y)`
pub static MIN_BY: By = By {
    doc: &FunctionDoc {
        name: "min_by",
        aliases: &["arg_min", "argmin"],
        signature: "min_by(x, y)",
        summary: "`x` of the row with the least `y`; of several such rows the least `x`",
        details: "Keeps the type and the unit of `x`. Rows in which either is NULL are ignored. It stores every distinct pair.",
        examples: &[
            Example::over("min_by(x, y)", "a,1\nb,2\nc,NULL", "a"),
            Example::over("min_by(x, y)", "5,1\n7,1", "5"),
        ],
    },
    is_least: true,
};
