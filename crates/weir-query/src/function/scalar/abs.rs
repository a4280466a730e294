//! `abs(x)`: the distance from zero.

use weir_model::{Column, Type};

use super::rows::{map, overflow};
use super::{Scalar, ScalarCall};
use crate::function::arguments::number_kept;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `abs(x)`
pub struct Abs;

static DOC: FunctionDoc = FunctionDoc {
    name: "abs",
    aliases: &[],
    signature: "abs(x)",
    summary: "the absolute value of `x`",
    details: "Keeps the type and the unit of `x`.",
    examples: &[
        Example {
            call: "abs(-3)",
            rows: "",
            result: "3",
        },
        Example {
            call: "abs(-2.5)",
            rows: "",
            result: "2.5",
        },
    ],
};

impl Scalar for Abs {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        number_kept(DOC.name, args)
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        match call.ty {
            Type::Float => map(Type::Float, &args[0], |x: f64| Ok(Some(x.abs()))),
            _ => map(Type::Int, &args[0], |x: i64| {
                x.checked_abs().map(Some).ok_or_else(|| overflow(call))
            }),
        }
    }
}
