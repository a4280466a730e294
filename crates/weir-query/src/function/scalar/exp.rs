//! `exp(x)`: e to the power of x.

use weir_model::{Column, Type, Unit};

use super::rows::map_floats;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, number};
use crate::function::{Argument, EvalError, Example, FunctionDoc, Refusal, Returns};

/// `exp(x)`
pub struct Exp;

static DOC: FunctionDoc = FunctionDoc {
    name: "exp",
    aliases: &[],
    signature: "exp(x)",
    summary: "e to the power of `x`",
    details: "A float without unit; infinite where it is too large for one.",
    examples: &[
        Example {
            call: "exp(0)",
            rows: "",
            result: "1",
        },
        Example {
            call: "ln(exp(2))",
            rows: "",
            result: "2",
        },
    ],
};

impl Scalar for Exp {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, Refusal> {
        arity(DOC.name, args, 1, 1)?;
        number(DOC.name, args, 0)?;
        Ok(Returns {
            ty: Type::Float,
            unit: Unit::None,
        })
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_floats(&args[0], f64::exp)
    }
}
