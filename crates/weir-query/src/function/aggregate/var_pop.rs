//! `var_pop(x)`: the variance of a whole population.

use super::dispersion::Dispersion;
use crate::function::{Example, FunctionDoc};

/// `var_pop(x)`
pub static VAR_POP: Dispersion = Dispersion {
    doc: &FunctionDoc {
        name: "var_pop",
        aliases: &[],
        signature: "var_pop(x)",
        summary: "the population variance: the sum of squared differences from the mean, divided by the number of values",
        details: "Without unit, since the unit would be squared. Computed from exact sums and rounded once at the end, so neither close large values nor inserted and \
              retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("var_pop(x)", "2\n4\n9", "8.666666666666666"),
            Example::over("var_pop(x)", "5", "0"),
            Example::over("var_pop(x)", "", "NULL"),
        ],
    },
    has_unit: false,
    read: |moments| moments.variance(0),
};
