//! `percentile_disc(x, q)`: a percentile, exact.

use super::percentile::Percentile;
use crate::function::{Example, FunctionDoc};

/// `percentile_disc(x, q)`
pub static PERCENTILE_DISC: Percentile = Percentile {
    doc: &FunctionDoc {
        name: "percentile_disc",
        aliases: &[],
        signature: "percentile_disc(x, q)",
        summary: "the smallest value that is not exceeded by a fraction `q` of all values; exact",
        details: "Also `percentile_disc(0.99) WITHIN GROUP (ORDER BY x)`. `q` is a constant from 0 to 1. Keeps the type and the unit of `x`. It stores every distinct value; `quantile(x, q)` needs a fixed amount of memory.",
        examples: &[
            Example::over("percentile_disc(x, 0.5)", "1\n2\n4\nNULL\n10", "2"),
            Example::over("percentile_disc(x, 1)", "b\na", "b"),
            Example::over("percentile_disc(x, 0.9)", "", "NULL"),
        ],
    },
    is_continuous: false,
};
