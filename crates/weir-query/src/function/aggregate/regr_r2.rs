//! `regr_r2(y, x)`: the share of the variance of `y` that the least squares line explains.

use weir_sketch::CoMoments;

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `regr_r2(y, x)`
pub static REGR_R2: Paired = Paired {
    doc: &FunctionDoc {
        name: "regr_r2",
        aliases: &[],
        signature: "regr_r2(y, x)",
        summary: "the share of the variance of `y` that the least squares line explains, from 0 to 1",
        details: "Without unit. NULL if all `x` are equal, otherwise 1 if all `y` are. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("regr_r2(x, y)", "3,1\n5,2\n7,3", "1"),
            Example::over("regr_r2(x, y)", "5,1\n5,2", "1"),
            Example::over("regr_r2(x, y)", "3,1\n5,1", "NULL"),
        ],
    },
    unit: UnitOf::Plain,
    read: Read::Float(CoMoments::determination),
};
