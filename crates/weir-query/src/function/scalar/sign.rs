//! `sign(x)`: -1, 0 or 1.

use weir_model::{Column, Type};

use super::rows::map;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, number};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `sign(x)`
pub struct Sign;

static DOC: FunctionDoc = FunctionDoc {
    name: "sign",
    aliases: &[],
    signature: "sign(x)",
    summary: "-1 for a negative `x`, 0 for zero, 1 for a positive one",
    details: "An integer without unit. NULL for NaN.",
    examples: &[
        Example::of("sign(-12)", "-1"),
        Example::of("sign(0.5)", "1"),
        Example::of("sign(0)", "0"),
    ],
};

impl Scalar for Sign {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, 1)?;
        number(DOC.name, args, 0)?;
        Ok(Returns::plain(Type::Int))
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        match &args[0] {
            Column::Float(_) => map(Type::Int, &args[0], |x: f64| {
                let order = x.partial_cmp(&0.0);
                Ok(order.map(|order| order as i64))
            }),
            _ => map(Type::Int, &args[0], |x: i64| Ok(Some(x.signum()))),
        }
    }
}
