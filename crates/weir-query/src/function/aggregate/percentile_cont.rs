//! `percentile_cont(x, q)`: a percentile, exact.

use super::percentile::Percentile;
use crate::function::{Example, FunctionDoc};

/// `percentile_cont(x, q)`
pub static PERCENTILE_CONT: Percentile = Percentile {
    doc: &FunctionDoc {
        name: "percentile_cont",
        aliases: &[],
        signature: "percentile_cont(x, q)",
        summary: "the value at a fraction `q` of the way from the least to the greatest value, interpolated; exact",
        details: "Also `percentile_cont(0.99) WITHIN GROUP (ORDER BY x)`. `q` is a constant from 0 to 1. A float in the unit of `x`. It stores every distinct value; `quantile(x, q)` needs a fixed amount of memory.",
        examples: &[
            Example::over("percentile_cont(x, 0.5)", "1\n2\n4\nNULL\n10", "3"),
            Example::over("percentile_cont(x, 0.9)", "10\n20", "19"),
            Example::over("percentile_cont(x, 0.9)", "", "NULL"),
        ],
    },
    is_continuous: true,
};
