//! `pow(x, y)`: x to the power of y.

use weir_model::{Column, Type};

use super::rows::{as_floats, map_pairs};
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, number};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `pow(x, y)`
pub struct Pow;

static DOC: FunctionDoc = FunctionDoc {
    name: "pow",
    aliases: &["power"],
    signature: "pow(x, y)",
    summary: "`x` to the power of `y`",
    details: "A float without unit. NULL where it is not a real number, as for a negative `x` and a fractional `y`.",
    examples: &[
        Example::of("pow(2, 10)", "1024"),
        Example::of("pow(2, -1)", "0.5"),
        Example::of("pow(-1, 0.5)", "NULL"),
    ],
};

impl Scalar for Pow {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 2, 2)?;
        number(DOC.name, args, 0)?;
        number(DOC.name, args, 1)?;
        Ok(Returns::plain(Type::Float))
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        let (x, y) = (as_floats(&args[0]), as_floats(&args[1]));
        map_pairs(Type::Float, &x, &y, |x: f64, y: f64| {
            let power = x.powf(y);
            Ok((!power.is_nan() || x.is_nan() || y.is_nan()).then_some(power))
        })
    }
}
