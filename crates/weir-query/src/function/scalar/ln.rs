//! `ln(x)`: the natural logarithm.

use weir_model::Column;

use super::rows::map_floats;
use super::{Scalar, ScalarCall};
use crate::function::arguments::number_to_float;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `ln(x)`
pub struct Ln;

static DOC: FunctionDoc = FunctionDoc {
    name: "ln",
    aliases: &[],
    signature: "ln(x)",
    summary: "the natural logarithm of `x`",
    details: "A float without unit. NULL for 0 and negative numbers.",
    examples: &[
        Example {
            call: "ln(1)",
            rows: "",
            result: "0",
        },
        Example {
            call: "ln(0)",
            rows: "",
            result: "NULL",
        },
    ],
};

impl Scalar for Ln {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        number_to_float(DOC.name, args)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_floats(&args[0], |x| if x > 0.0 { x.ln() } else { f64::NAN })
    }
}
