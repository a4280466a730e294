//! `regr_slope(y, x)`: the slope of the least squares line of `y` over `x`.

use weir_sketch::CoMoments;

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `regr_slope(y, x)`
pub static REGR_SLOPE: Paired = Paired {
    doc: &FunctionDoc {
        name: "regr_slope",
        aliases: &[],
        signature: "regr_slope(y, x)",
        summary: "the slope of the least squares line of `y` over `x`",
        details: "In units of `y` per unit of `x`, written without unit. NULL if all `x` are equal. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("regr_slope(x, y)", "3,1\n5,2\n7,3", "2"),
            Example::over("regr_slope(x, y)", "3,1\n5,1", "NULL"),
        ],
    },
    unit: UnitOf::Plain,
    read: Read::Float(CoMoments::slope),
};
