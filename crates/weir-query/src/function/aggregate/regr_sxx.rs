//! `regr_sxx(y, x)`: the sum of squared differences of `x` from their mean.

use weir_sketch::CoMoments;

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `regr_sxx(y, x)`
pub static REGR_SXX: Paired = Paired {
    doc: &FunctionDoc {
        name: "regr_sxx",
        aliases: &[],
        signature: "regr_sxx(y, x)",
        summary: "the sum of squared differences of `x` from their mean",
        details: "Without unit, since the unit would be squared. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("regr_sxx(x, y)", "1,2\n3,6", "8"),
            Example::over("regr_sxx(x, y)", "NULL,9", "NULL"),
        ],
    },
    unit: UnitOf::Plain,
    read: Read::Float(CoMoments::sum_squares_x),
};
