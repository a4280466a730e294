//! `regr_avgy(y, x)`: the mean of `y` over the rows in which neither is NULL.

use weir_sketch::CoMoments;

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `regr_avgy(y, x)`
pub static REGR_AVGY: Paired = Paired {
    doc: &FunctionDoc {
        name: "regr_avgy",
        aliases: &[],
        signature: "regr_avgy(y, x)",
        summary: "the mean of `y` over the rows in which neither is NULL",
        details: "In the unit of `y`. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[Example::over("regr_avgy(x, y)", "1,2\n3,6\n9,NULL", "2")],
    },
    unit: UnitOf::Y,
    read: Read::Float(CoMoments::mean_y),
};
