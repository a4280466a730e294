//! `sum(x)`: the sum of the values.

use weir_model::Type;

use super::per_group::shared_per_group;
use super::total::{FloatTotal, IntTotal, TotalFunction};
use crate::function::arguments::number_kept;
use crate::function::{EvalError, Example, FunctionDoc};

/// `sum(x)`
pub static SUM: TotalFunction = TotalFunction {
    doc: &FunctionDoc {
        name: "sum",
        aliases: &[],
        signature: "sum(x)",
        summary: "the sum of the values",
        details: "Keeps the type and the unit of `x`. A sum of integers that does not fit in 64 bits is an error that ends the query; intermediate sums can exceed 64 bits. \
              A sum of floats is exact and rounded once at the end, so rows that leave a window leave no rounding error.",
        examples: &[
            Example::over("sum(x)", "1\nNULL\n3", "4"),
            Example::over("sum(x)", "1e300\n0.5\n-1e300", "0.5"),
            Example::over("sum(x)", "NULL", "NULL"),
        ],
    },
    check: number_kept,
    state: |ty| match ty {
        Type::Float => shared_per_group(|x: f64| x, of_floats, Some(FloatTotal::result_of)),
        _ => shared_per_group(|x: i64| x, of_ints, Some(IntTotal::result_of)),
    },
};

/// The sum of floats.
pub fn of_floats(total: &FloatTotal) -> Result<Option<f64>, EvalError> {
    Ok((total.count != 0).then(|| total.sum.to_f64()))
}

/// The sum of integers.
pub fn of_ints(total: &IntTotal) -> Result<Option<i64>, EvalError> {
    if total.count == 0 {
        return Ok(None);
    }
    let overflow = |_| {
        EvalError::new("integer overflow in sum").help("sum floats instead: sum(cast(x as float))")
    };
    i64::try_from(total.sum).map(Some).map_err(overflow)
}
