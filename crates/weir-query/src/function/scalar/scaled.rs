//! `seconds`, `mib` and the like: a number with a unit as a plain number of a certain unit.

use weir_model::{Column, Dimension, Type, Unit};

use super::ScalarCall;
use super::rows::map_floats;
use crate::function::arguments::{argument_error, arity, number};
use crate::function::{Argument, ArgumentError, EvalError, Returns};

/// Requires exactly one number whose unit measures `dimension`.
pub fn check(
    name: &str,
    args: &[Argument],
    dimension: Dimension,
    what: &str,
) -> Result<Returns, ArgumentError> {
    arity(name, args, 1, 1)?;
    number(name, args, 0)?;
    if args[0].unit.dimension() != dimension {
        let unit = match args[0].unit {
            Unit::None => "a plain number".to_string(),
            unit => format!("a number of {unit}"),
        };
        return Err(argument_error(
            0,
            format!("`{name}` takes {what}, not {unit}"),
        ));
    }
    Ok(Returns::plain(Type::Float))
}

/// The argument in units of `size` of the smallest of its kind (nanoseconds, bytes).
pub fn eval(call: &ScalarCall, x: &Column, size: f64) -> Result<Column, EvalError> {
    let scale = call.args[0].unit().scale() as f64;
    map_floats(x, |x| x * scale / size)
}
