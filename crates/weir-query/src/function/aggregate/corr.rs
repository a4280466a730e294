//! `corr(y, x)`: the coefficient of correlation (Pearson) of `y` and `x`, from -1 to 1.

use weir_sketch::CoMoments;

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `corr(y, x)`
pub static CORR: Paired = Paired {
    doc: &FunctionDoc {
        name: "corr",
        aliases: &[],
        signature: "corr(y, x)",
        summary: "the coefficient of correlation (Pearson) of `y` and `x`, from -1 to 1",
        details: "Without unit. NULL if all `y` or all `x` are equal. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("corr(x, y)", "2,1\n4,2\n6,3", "1"),
            Example::over("corr(x, y)", "1,3\n3,1\nNULL,7", "-1"),
            Example::over("corr(x, y)", "5,1\n5,2", "NULL"),
        ],
    },
    unit: UnitOf::Plain,
    read: Read::Float(CoMoments::correlation),
};
