//! `regr_count(y, x)`: the number of rows in which neither `y` nor `x` is NULL.

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `regr_count(y, x)`
pub static REGR_COUNT: Paired = Paired {
    doc: &FunctionDoc {
        name: "regr_count",
        aliases: &[],
        signature: "regr_count(y, x)",
        summary: "the number of rows in which neither `y` nor `x` is NULL",
        details: "0 if there is none.",
        examples: &[
            Example::over("regr_count(x, y)", "1,2\n3,NULL\n4,4", "2"),
            Example::over("regr_count(x, y)", "NULL,1", "0"),
        ],
    },
    unit: UnitOf::Plain,
    read: Read::Count,
};
