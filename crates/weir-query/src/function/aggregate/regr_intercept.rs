//! `regr_intercept(y, x)`: the `y` of the least squares line where `x` is 0.

use weir_sketch::CoMoments;

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `regr_intercept(y, x)`
pub static REGR_INTERCEPT: Paired = Paired {
    doc: &FunctionDoc {
        name: "regr_intercept",
        aliases: &[],
        signature: "regr_intercept(y, x)",
        summary: "the `y` of the least squares line where `x` is 0",
        details: "In the unit of `y`. NULL if all `x` are equal. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("regr_intercept(x, y)", "3,1\n5,2\n7,3", "1"),
            Example::over("regr_intercept(x, y)", "3,1", "NULL"),
        ],
    },
    unit: UnitOf::Y,
    read: Read::Float(CoMoments::intercept),
};
