//! `exp(x)`: e to the power of x.

use weir_model::Column;

use super::rows::map_floats;
use super::{Scalar, ScalarCall};
use crate::function::arguments::number_to_float;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `exp(x)`
pub struct Exp;

static DOC: FunctionDoc = FunctionDoc {
    name: "exp",
    aliases: &[],
    signature: "exp(x)",
    summary: "e to the power of `x`",
    details: "A float without unit; infinite on overflow.",
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

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        number_to_float(DOC.name, args)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_floats(&args[0], f64::exp)
    }
}
