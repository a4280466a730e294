//! `stddev(x)`: the standard deviation of a sample.

use super::dispersion::Dispersion;
use crate::function::{Example, FunctionDoc};

/// `stddev(x)`
pub static STDDEV: Dispersion = Dispersion {
    doc: &FunctionDoc {
        name: "stddev",
        aliases: &["stddev_samp"],
        signature: "stddev(x)",
        summary: "the sample standard deviation: the square root of `var`",
        details: "In the unit of `x`. NULL over fewer than two values. Computed from exact sums and rounded once at the end, so neither close large values nor inserted and \
              retracted rows reduce the precision. NaN if a value is infinite or NaN.",
        examples: &[
            Example::over("stddev(x)", "2\n4\n6", "2"),
            Example::over("stddev(x)", "5", "NULL"),
        ],
    },
    has_unit: true,
    read: |moments| moments.deviation(1),
};
