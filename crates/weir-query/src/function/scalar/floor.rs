//! `floor(x)`: the greatest integer not above x.

use weir_model::{Column, Type};

use super::rows::map;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, number};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `floor(x)`
pub struct Floor;

static DOC: FunctionDoc = FunctionDoc {
    name: "floor",
    aliases: &[],
    signature: "floor(x)",
    summary: "the largest integer that is not greater than `x`",
    details: "Keeps the type and the unit of `x`.",
    examples: &[
        Example {
            call: "floor(2.7)",
            rows: "",
            result: "2",
        },
        Example {
            call: "floor(-2.7)",
            rows: "",
            result: "-3",
        },
        Example {
            call: "floor(5)",
            rows: "",
            result: "5",
        },
    ],
};

impl Scalar for Floor {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, 1)?;
        number(DOC.name, args, 0)?;
        Ok(Returns {
            ty: args[0].ty,
            unit: args[0].unit,
        })
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        match &args[0] {
            Column::Float(_) => map(Type::Float, &args[0], |x: f64| Ok(Some(x.floor()))),
            whole => Ok(whole.clone()),
        }
    }
}
