//! `covar_pop(y, x)`: the population covariance.

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `covar_pop(y, x)`
pub static COVAR_POP: Paired = Paired {
    doc: &FunctionDoc {
        name: "covar_pop",
        aliases: &[],
        signature: "covar_pop(y, x)",
        summary: "the population covariance: the sum of products of the differences of `y` and `x` from their means, divided by the number of pairs",
        details: "Without unit, since the units would be multiplied. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("covar_pop(x, y)", "1,2\n3,6", "2"),
            Example::over("covar_pop(x, y)", "1,2", "0"),
            Example::over("covar_pop(x, y)", "NULL,2", "NULL"),
        ],
    },
    unit: UnitOf::Plain,
    read: Read::Float(|sums| sums.covariance(0)),
};
