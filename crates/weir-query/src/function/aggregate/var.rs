//! `var(x)`: the variance of a sample.

use super::dispersion::Dispersion;
use crate::function::{Example, FunctionDoc};

/// `var(x)`
pub static VAR: Dispersion = Dispersion {
    doc: &FunctionDoc {
        name: "var",
        aliases: &["variance", "var_samp"],
        signature: "var(x)",
        summary: "the sample variance: the sum of squared differences from the mean, divided by the number of values minus one",
        details: "Without unit, since the unit would be squared. NULL over fewer than two values. Computed from exact sums and rounded once at the end, so neither close large values nor inserted and \
              retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("var(x)", "2\n4\n9", "13"),
            Example::over("var(x)", "5", "NULL"),
            Example::over("var(x)", "1700000000000000001\n1700000000000000003", "2"),
        ],
    },
    has_unit: false,
    read: |moments| moments.variance(1),
};
