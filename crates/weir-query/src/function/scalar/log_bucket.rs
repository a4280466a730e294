//! `log_bucket(x, base)`: x rounded down to a power of a base.

use weir_model::{Column, Type};

use super::rows::map;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{argument_error, arity, as_i64, constant, literal, number_kept};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `log_bucket(x [, base])`
pub struct LogBucket;

static DOC: FunctionDoc = FunctionDoc {
    name: "log_bucket",
    aliases: &[],
    signature: "log_bucket(x [, base])",
    summary: "the greatest power of `base` that is not greater than `x`",
    details: "Keeps the type and the unit of `x`. `base` is a constant integer from 2, 10 without it. For 0 it is 0, for a negative number the negative of its absolute value's bucket. `pow2_bucket` rounds up, to powers of two.",
    examples: &[
        Example::of("log_bucket(5000)", "1000"),
        Example::of("log_bucket(1000)", "1000"),
        Example::of("log_bucket(5000, 2)", "4096"),
        Example::of("log_bucket(0)", "0"),
        Example::of("log_bucket(-50)", "-10"),
        Example::of("log_bucket(0.3, 2)", "0.25"),
    ],
};

impl Scalar for LogBucket {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, 2)?;
        if args.len() > 1 {
            let base = as_i64(constant(DOC.name, args, 1, "a base")?);
            if base.is_none_or(|base| base < 2) {
                return Err(argument_error(1, "a base is an integer from 2"));
            }
        }
        number_kept(DOC.name, &args[..1])
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        let base = call.args.get(1).and_then(literal);
        let base = base.as_ref().and_then(as_i64).unwrap_or(10);
        match &args[0] {
            Column::Float(_) => map(Type::Float, &args[0], |x: f64| {
                Ok(Some(of_float(x, base as f64)))
            }),
            _ => map(Type::Int, &args[0], |x: i64| Ok(Some(of_integer(x, base)))),
        }
    }
}

fn of_integer(x: i64, base: i64) -> i64 {
    let size = i128::from(x).abs();
    let mut power = i128::from(size > 0);
    while size > 0 && power * i128::from(base) <= size {
        power *= i128::from(base);
    }
    // -2^63 is a power of two.
    (power * i128::from(x.signum())) as i64
}

fn of_float(x: f64, base: f64) -> f64 {
    let size = x.abs();
    if size == 0.0 || !size.is_finite() {
        return x;
    }
    // A logarithm may be rounded to the next integer.
    let mut exponent = size.log(base).floor() as i32;
    while base.powi(exponent) > size {
        exponent -= 1;
    }
    while base.powi(exponent + 1) <= size {
        exponent += 1;
    }
    base.powi(exponent).copysign(x)
}
