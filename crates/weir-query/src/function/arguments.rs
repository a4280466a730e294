//! Checks of function arguments, with the same wording for all functions.

use weir_model::{Dimension, Type, Unit, Value};

use super::{Argument, ArgumentError, Returns};
use crate::expr::{Expr, UnaryOp};

/// Requires `least` to `most` arguments.
pub fn arity(
    name: &str,
    args: &[Argument],
    least: usize,
    most: usize,
) -> Result<(), ArgumentError> {
    if (least..=most).contains(&args.len()) {
        return Ok(());
    }
    let plural = |n: usize| if n == 1 { "argument" } else { "arguments" };
    let takes = match (least, most) {
        (n, m) if n == m => format!("{n} {}", plural(n)),
        (n, usize::MAX) => format!("at least {n} {}", plural(n)),
        (n, m) => format!("{n} to {m} arguments"),
    };
    let found = args.len();
    Err(ArgumentError {
        argument: (found > most).then_some(most),
        message: format!("`{name}` takes {takes}, not {found}"),
    })
}

/// Requires that argument `i` has one of the `allowed` types, which `what` describes: `a number`.
pub fn typed(
    name: &str,
    args: &[Argument],
    i: usize,
    allowed: &[Type],
    what: &str,
) -> Result<(), ArgumentError> {
    if allowed.contains(&args[i].ty) || is_null(&args[i]) {
        return Ok(());
    }
    let message = format!("`{name}` takes {what} here, not a {}", args[i].ty);
    Err(argument_error(i, message))
}

/// Requires that argument `i` is an integer or a float.
pub fn number(name: &str, args: &[Argument], i: usize) -> Result<(), ArgumentError> {
    typed(name, args, i, &[Type::Int, Type::Float], "a number")
}

/// Requires that argument `i` is a text.
pub fn text(name: &str, args: &[Argument], i: usize) -> Result<(), ArgumentError> {
    typed(name, args, i, &[Type::Text], "a text")
}

/// Requires one number; the result is a float without unit.
pub fn number_to_float(name: &str, args: &[Argument]) -> Result<Returns, ArgumentError> {
    arity(name, args, 1, 1)?;
    number(name, args, 0)?;
    Ok(Returns::plain(Type::Float))
}

/// Requires one number; the result has its type and unit.
pub fn number_kept(name: &str, args: &[Argument]) -> Result<Returns, ArgumentError> {
    arity(name, args, 1, 1)?;
    number(name, args, 0)?;
    Ok(args[0].returned())
}

/// Requires one number or timestamp; the result is a float in its unit, or a timestamp.
pub fn mean_of(name: &str, args: &[Argument]) -> Result<Returns, ArgumentError> {
    arity(name, args, 1, 1)?;
    let allowed = [Type::Int, Type::Float, Type::Time];
    typed(name, args, 0, &allowed, "a number or a timestamp")?;
    let ty = match args[0].ty {
        Type::Time => Type::Time,
        _ => Type::Float,
    };
    Ok(Returns::new(ty, args[0].unit))
}

/// Requires one value of a simple type, which `what` describes; the result has its type and unit.
pub fn value_kept(name: &str, args: &[Argument], what: &str) -> Result<Returns, ArgumentError> {
    arity(name, args, 1, 1)?;
    let allowed = [Type::Bool, Type::Int, Type::Float, Type::Text, Type::Time];
    typed(name, args, 0, &allowed, what)?;
    Ok(args[0].returned())
}

/// Requires one text; the result has type `ty` and no unit.
pub fn text_to(name: &str, args: &[Argument], ty: Type) -> Result<Returns, ArgumentError> {
    arity(name, args, 1, 1)?;
    text(name, args, 0)?;
    Ok(Returns::plain(ty))
}

/// The value of argument `i`, which must be a constant other than NULL.
pub fn constant<'a>(
    name: &str,
    args: &'a [Argument],
    i: usize,
    what: &str,
) -> Result<&'a Value, ArgumentError> {
    match &args[i].constant {
        Some(value) if !value.is_null() => Ok(value),
        _ => Err(argument_error(
            i,
            format!("`{name}` takes {what} here, as a constant"),
        )),
    }
}

/// Requires that the unit of argument `i` has the dimension of `unit`. A plain number matches every
/// unit.
pub fn same_dimension(
    name: &str,
    args: &[Argument],
    i: usize,
    unit: Unit,
) -> Result<(), ArgumentError> {
    let (found, requested) = (args[i].unit.dimension(), unit.dimension());
    if found == requested || found == Dimension::None || requested == Dimension::None {
        return Ok(());
    }
    let message = format!("`{name}` cannot combine {} and {unit}", args[i].unit);
    Err(argument_error(i, message))
}

/// The common type and unit of `args`, which a function returns that returns one of them.
///
/// Integers become floats beside floats. Of several units the finest is used, so that integers stay
/// integers.
pub fn common_type(name: &str, args: &[Argument]) -> Result<Returns, ArgumentError> {
    let first = args.iter().position(|a| !is_null(a)).unwrap_or(0);
    let mut all = Returns::new(args[first].ty, args[first].unit);
    for (i, arg) in args.iter().enumerate().filter(|(_, a)| !is_null(a)) {
        if arg.ty != all.ty && !(arg.ty.is_numeric() && all.ty.is_numeric()) {
            let message = format!("`{name}` cannot combine a {} and a {}", all.ty, arg.ty);
            return Err(argument_error(i, message));
        }
        same_dimension(name, args, i, all.unit)?;
        if arg.ty == Type::Float {
            all.ty = Type::Float;
        }
        let plain = all.unit.dimension() == Dimension::None;
        if plain
            || (arg.unit.dimension() == all.unit.dimension() && arg.unit.scale() < all.unit.scale())
        {
            all.unit = arg.unit;
        }
    }
    Ok(all)
}

/// True for a literal NULL, which matches any type.
fn is_null(arg: &Argument) -> bool {
    matches!(arg.constant, Some(Value::Null))
}

/// A refusal of argument `i`.
pub fn argument_error(i: usize, message: impl Into<String>) -> ArgumentError {
    ArgumentError {
        argument: Some(i),
        message: message.into(),
    }
}

/// A number of unit `from` in unit `to`, when both have the same dimension. Integers stay integers
/// when the conversion is exact.
pub fn convert(value: &Value, from: Unit, to: Unit) -> Value {
    if from == to || from.dimension() != to.dimension() {
        return value.clone();
    }
    let (times, over) = (from.scale(), to.scale());
    match *value {
        Value::Int(x) => match x.checked_mul(times) {
            Some(product) if product % over == 0 => Value::Int(product / over),
            _ => Value::Float(x as f64 * times as f64 / over as f64),
        },
        Value::Float(x) => Value::Float(x * times as f64 / over as f64),
        ref other => other.clone(),
    }
}

/// The value of a literal, also with a sign before it or a cast between numbers around it.
pub fn literal(expr: &Expr) -> Option<Value> {
    match expr {
        Expr::Literal { value, .. } => Some(value.clone()),
        Expr::Unary {
            op: UnaryOp::Negate,
            expr,
        } => match literal(expr)? {
            Value::Int(x) => x.checked_neg().map(Value::Int),
            Value::Float(x) => Some(Value::Float(-x)),
            _ => None,
        },
        Expr::Cast { expr, ty, .. } => match (literal(expr)?, ty) {
            (Value::Int(x), Type::Float) => Some(Value::Float(x as f64)),
            (value @ Value::Int(_), Type::Int) | (value @ Value::Float(_), Type::Float) => {
                Some(value)
            }
            _ => None,
        },
        _ => None,
    }
}

/// A number as a float.
pub fn as_f64(value: &Value) -> Option<f64> {
    match value {
        Value::Int(x) => Some(*x as f64),
        Value::Float(x) => Some(*x),
        _ => None,
    }
}

/// An integer.
pub fn as_i64(value: &Value) -> Option<i64> {
    match value {
        Value::Int(x) => Some(*x),
        _ => None,
    }
}
