//! `covar_samp(y, x)`: the sample covariance.

use super::paired::{Paired, Read, UnitOf};
use crate::function::{Example, FunctionDoc};

/// `covar_samp(y, x)`
pub static COVAR_SAMP: Paired = Paired {
    doc: &FunctionDoc {
        name: "covar_samp",
        aliases: &[],
        signature: "covar_samp(y, x)",
        summary: "the sample covariance: the same sum as of `covar_pop`, divided by the number of pairs minus one",
        details: "Without unit, since the units would be multiplied. NULL over fewer than two pairs. Rows in which either is NULL are ignored. Computed from exact sums, so neither close large values nor inserted and retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("covar_samp(x, y)", "1,2\n3,6", "4"),
            Example::over("covar_samp(x, y)", "1,2", "NULL"),
        ],
    },
    unit: UnitOf::Plain,
    read: Read::Float(|sums| sums.covariance(1)),
};
