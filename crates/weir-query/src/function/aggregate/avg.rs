//! `avg(x)`: the arithmetic mean of the values.

use weir_model::Type;

use super::per_group::shared_per_group;
use super::total::{FloatTotal, IntTotal, TotalFunction};
use crate::function::arguments::mean_of;
use crate::function::{EvalError, Example, FunctionDoc};

/// `avg(x)`
pub static AVG: TotalFunction = TotalFunction {
    doc: &FunctionDoc {
        name: "avg",
        aliases: &["mean"],
        signature: "avg(x)",
        summary: "the arithmetic mean of the values",
        details: "A float in the unit of `x`; of timestamps a timestamp, rounded down. It is computed from an exact sum that never overflows.",
        examples: &[
            Example::over("avg(x)", "1\nNULL\n2", "1.5"),
            Example::over(
                "avg(x)",
                "9223372036854775807\n9223372036854775807",
                "9223372036854776000",
            ),
            Example::over("avg(x)", "", "NULL"),
        ],
    },
    check: mean_of,
    state: |ty| match ty {
        Type::Float => shared_per_group(|x: f64| x, of_floats, Some(FloatTotal::result_of)),
        Type::Time => shared_per_group(|x: i64| x, of_times, Some(IntTotal::result_of)),
        _ => shared_per_group(|x: i64| x, of_ints, Some(IntTotal::result_of)),
    },
};

/// The mean of integers.
pub fn of_ints(total: &IntTotal) -> Result<Option<f64>, EvalError> {
    // A 64-bit integer is converted by one instruction, a 128-bit one by a routine, which is kept
    // out of the usual case.
    let sum = match i64::try_from(total.sum) {
        Ok(sum) => sum as f64,
        Err(_) => wide(total.sum),
    };
    Ok((total.count != 0).then(|| sum / total.count as f64))
}

#[cold]
#[inline(never)]
fn wide(sum: i128) -> f64 {
    sum as f64
}

/// The mean of floats.
pub fn of_floats(total: &FloatTotal) -> Result<Option<f64>, EvalError> {
    Ok((total.count != 0).then(|| total.sum.over(total.count)))
}

/// The mean of timestamps.
pub fn of_times(total: &IntTotal) -> Result<Option<i64>, EvalError> {
    if total.count == 0 {
        return Ok(None);
    }
    let mean = total.sum.div_euclid(i128::from(total.count));
    let outside = |_| EvalError::new("integer overflow in avg: more than 2^63 rows");
    i64::try_from(mean).map(Some).map_err(outside)
}
