//! `sqrt(x)`: the square root.

use weir_model::Column;

use super::rows::map_floats;
use super::{Scalar, ScalarCall};
use crate::function::arguments::number_to_float;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `sqrt(x)`
pub struct Sqrt;

static DOC: FunctionDoc = FunctionDoc {
    name: "sqrt",
    aliases: &[],
    signature: "sqrt(x)",
    summary: "the square root of `x`",
    details: "A float without unit. NULL for a negative number.",
    examples: &[
        Example {
            call: "sqrt(9)",
            rows: "",
            result: "3",
        },
        Example {
            call: "sqrt(-1)",
            rows: "",
            result: "NULL",
        },
    ],
};

impl Scalar for Sqrt {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        number_to_float(DOC.name, args)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_floats(&args[0], f64::sqrt)
    }
}
