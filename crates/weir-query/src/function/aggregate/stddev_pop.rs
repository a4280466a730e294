//! `stddev_pop(x)`: the standard deviation of a whole population.

use super::dispersion::Dispersion;
use crate::function::{Example, FunctionDoc};

/// `stddev_pop(x)`
pub static STDDEV_POP: Dispersion = Dispersion {
    doc: &FunctionDoc {
        name: "stddev_pop",
        aliases: &[],
        signature: "stddev_pop(x)",
        summary: "the population standard deviation: the square root of `var_pop`",
        details: "In the unit of `x`. Computed from exact sums and rounded once at the end, so neither close large values nor inserted and \
              retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("stddev_pop(x)", "1\n5", "2"),
            Example::over("stddev_pop(x)", "5", "0"),
            Example::over("stddev_pop(x)", "NULL", "NULL"),
        ],
    },
    has_unit: true,
    read: |moments| moments.deviation(0),
};
