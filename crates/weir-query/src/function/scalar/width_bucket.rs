//! `width_bucket(x, low, high, n)`: the number of the bucket of equal width that x is in.

use weir_model::{Type, Unit, Value};

use super::row_function::{RowFunction, int_at};
use crate::function::arguments::{argument_error, as_f64};
use crate::function::{Argument, ArgumentError, Example, FunctionDoc};

/// `width_bucket(x, low, high, n)`
pub static WIDTH_BUCKET: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "width_bucket",
        aliases: &[],
        signature: "width_bucket(x, low, high, n)",
        summary: "the number of the bucket that `x` is in, of `n` buckets of equal width from `low` to `high`",
        details: "0 below `low`, and `n` + 1 from `high` on, as in PostgreSQL. `low` and `high` are plain numbers or in the unit of `x`. NULL unless `low` is less than `high` and `n` is above 0.",
        examples: &[
            Example::of("width_bucket(35, 0, 100, 10)", "4"),
            Example::of("width_bucket(-1, 0, 100, 10)", "0"),
            Example::of("width_bucket(100, 0, 100, 10)", "11"),
            Example::of("width_bucket(2.5, 0, 10, 4)", "2"),
        ],
    },
    takes: &[Type::Float, Type::Float, Type::Float, Type::Int],
    required: 4,
    returns: Type::Int,
    refuses: one_unit,
    value: |args| {
        let at = |i: usize| as_f64(&args[i]).unwrap_or(f64::NAN);
        let (x, low, high, buckets) = (at(0), at(1), at(2), int_at(args, 3));
        let is_range = low < high;
        if !is_range || buckets <= 0 || x.is_nan() {
            return Ok(Value::Null);
        }
        Ok(Value::Int(match x {
            _ if x < low => 0,
            _ if x >= high => buckets.saturating_add(1),
            _ => (((x - low) / (high - low) * buckets as f64) as i64).saturating_add(1),
        }))
    },
};

/// Both limits are in the unit of the first argument, or without unit.
fn one_unit(args: &[Argument]) -> Result<(), ArgumentError> {
    let differs = |arg: &Argument| arg.unit != Unit::None && arg.unit != args[0].unit;
    match args[1..3].iter().position(differs) {
        Some(i) => {
            let message = format!("`width_bucket` takes a number of {} here", args[0].unit);
            Err(argument_error(i + 1, message))
        }
        None => Ok(()),
    }
}
