//! `round(x [, n])`: to the nearest number with n decimals.

use weir_model::{Column, Type};

use super::rows::{map, overflow};
use super::{Scalar, ScalarCall};
use crate::function::arguments::{argument_error, arity, as_i64, constant, literal, number};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `round(x [, n])`
pub struct Round;

static DOC: FunctionDoc = FunctionDoc {
    name: "round",
    aliases: &[],
    signature: "round(x [, n])",
    summary: "`x` rounded to `n` decimals, by default 0; halves away from zero",
    details: "Keeps the type and the unit of `x`. `n` is a constant from -18 to 18; a negative one rounds to tens, hundreds and so on.",
    examples: &[
        Example::of("round(2.5)", "3"),
        Example::of("round(-2.5)", "-3"),
        Example::of("round(3.14159, 2)", "3.14"),
        Example::of("round(1250, -2)", "1300"),
        Example::of("round(7, 2)", "7"),
    ],
};

impl Scalar for Round {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, 2)?;
        number(DOC.name, args, 0)?;
        if args.len() == 2 {
            let decimals = constant(DOC.name, args, 1, "a number of decimals")?;
            let allowed = -DECIMALS_MAX..=DECIMALS_MAX;
            if !as_i64(decimals).is_some_and(|n| allowed.contains(&n)) {
                return Err(argument_error(
                    1,
                    "`round` takes an integer number of decimals from -18 to 18",
                ));
            }
        }
        Ok(args[0].returned())
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        let decimals = call.args.get(1).and_then(literal);
        let decimals = decimals.as_ref().and_then(as_i64).unwrap_or(0);
        match &args[0] {
            Column::Float(_) => map(Type::Float, &args[0], |x: f64| {
                Ok(Some(round_float(x, decimals as i32)))
            }),
            whole if decimals >= 0 => Ok(whole.clone()),
            _ => {
                let step = 10i64.pow(decimals.unsigned_abs() as u32);
                map(Type::Int, &args[0], |x: i64| {
                    round_int(x, step).map(Some).ok_or_else(|| overflow(call))
                })
            }
        }
    }
}

/// Maximum number of decimals: 10^18 is the last power of ten in 64 bits.
const DECIMALS_MAX: i64 = 18;

fn round_float(x: f64, decimals: i32) -> f64 {
    let power = 10f64.powi(decimals.abs());
    let rounded = match decimals {
        0.. => (x * power).round() / power,
        _ => (x / power).round() * power,
    };
    // Too large to have decimals.
    if rounded.is_finite() { rounded } else { x }
}

fn round_int(x: i64, step: i64) -> Option<i64> {
    let rest = x % step;
    let down = x - rest;
    match rest.abs() >= step - rest.abs() {
        true => down.checked_add(step * rest.signum()),
        false => Some(down),
    }
}
