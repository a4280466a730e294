//! `bucket(x, width)`: x rounded down to a multiple of width.

use weir_model::{Column, Type};

use super::rows::{map, overflow};
use super::{Scalar, ScalarCall};
use crate::function::arguments::{
    argument_error, arity, as_f64, as_i64, constant, convert, literal, same_dimension, typed,
};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `bucket(x, width)`
pub struct Bucket;

static DOC: FunctionDoc = FunctionDoc {
    name: "bucket",
    aliases: &["time_bucket"],
    signature: "bucket(x, width)",
    summary: "`x` rounded down to a multiple of `width`",
    details: "Keeps the type and the unit of `x`, which is a number or a timestamp. `width` is a constant above 0, in any unit of the same kind: `bucket(latency, 100 us)`, `bucket(ts, 1 s)`. `time_bucket(1 s, ts)` is the same.",
    examples: &[
        Example::of("bucket(1234, 100)", "1200"),
        Example::of("bucket(-1, 100)", "-100"),
        Example::of("bucket(0.75, 0.5)", "0.5"),
        Example::of("bucket(1234567 ns, 100 us)", "1200000"),
        Example::of("bucket(13 sectors, 4 KiB)", "4096"),
        Example::of(
            "bucket(cast('2026-01-31 12:34:56' as timestamp), 1 min)",
            "1769862840000000000",
        ),
    ],
};

impl Scalar for Bucket {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 2, 2)?;
        let allowed = [Type::Int, Type::Float, Type::Time];
        typed(DOC.name, args, 0, &allowed, "a number or a timestamp")?;
        let width = constant(DOC.name, args, 1, "a width")?;
        same_dimension(DOC.name, args, 1, args[0].unit)?;
        let width = convert(width, args[1].unit, args[0].unit);
        let fits = match args[0].ty {
            Type::Float => as_f64(&width).is_some_and(|w| w > 0.0 && w.is_finite()),
            _ => as_i64(&width).is_some_and(|w| w > 0),
        };
        if !fits {
            let message = "a width is a number above 0; for integers, an integer in their unit";
            return Err(argument_error(1, message));
        }
        Ok(args[0].returned())
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        let width = literal(&call.args[1]).expect("`check` saw a constant");
        let width = convert(&width, call.args[1].unit(), call.args[0].unit());
        match &args[0] {
            Column::Float(_) => {
                let width = as_f64(&width).expect("`check` saw a number");
                map(Type::Float, &args[0], |x: f64| {
                    Ok(Some((x / width).floor() * width))
                })
            }
            _ => {
                let width = as_i64(&width).unwrap_or(1);
                map(call.ty, &args[0], |x: i64| {
                    let down = x.checked_sub(x.rem_euclid(width));
                    down.map(Some).ok_or_else(|| overflow(call))
                })
            }
        }
    }
}
