//! `regr_sxy(y, x)`: the sum of products of the differences of `y` and `x` from their means.

use weir_sketch::CoMoments;

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `regr_sxy(y, x)`
pub static REGR_SXY: Paired = Paired {
    doc: &FunctionDoc {
        name: "regr_sxy",
        aliases: &[],
        signature: "regr_sxy(y, x)",
        summary: "the sum of products of the differences of `y` and `x` from their means",
        details: "Without unit, since the units would be multiplied. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[Example::over("regr_sxy(x, y)", "1,2\n3,6", "4")],
    },
    unit: UnitOf::Plain,
    read: Read::Float(CoMoments::sum_products),
};
