//! `regr_syy(y, x)`: the sum of squared differences of `y` from their mean.

use weir_sketch::CoMoments;

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `regr_syy(y, x)`
pub static REGR_SYY: Paired = Paired {
    doc: &FunctionDoc {
        name: "regr_syy",
        aliases: &[],
        signature: "regr_syy(y, x)",
        summary: "the sum of squared differences of `y` from their mean",
        details: "Without unit, since the unit would be squared. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[Example::over("regr_syy(x, y)", "1,2\n3,6", "2")],
    },
    unit: UnitOf::Plain,
    read: Read::Float(CoMoments::sum_squares_y),
};
