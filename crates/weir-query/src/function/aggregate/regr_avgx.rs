//! `regr_avgx(y, x)`: the mean of `x` over the rows in which neither is NULL.

use weir_sketch::CoMoments;

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `regr_avgx(y, x)`
pub static REGR_AVGX: Paired = Paired {
    doc: &FunctionDoc {
        name: "regr_avgx",
        aliases: &[],
        signature: "regr_avgx(y, x)",
        summary: "the mean of `x` over the rows in which neither is NULL",
        details: "In the unit of `x`. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("regr_avgx(x, y)", "1,2\n3,6\nNULL,9", "4"),
            Example::over("regr_avgx(x, y)", "NULL,9", "NULL"),
        ],
    },
    unit: UnitOf::X,
    read: Read::Float(CoMoments::mean_x),
};
