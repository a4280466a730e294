//! `log2(x)`: the logarithm to base 2.

use weir_model::Column;

use super::rows::map_floats;
use super::{Scalar, ScalarCall};
use crate::function::arguments::number_to_float;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `log2(x)`
pub struct Log2;

static DOC: FunctionDoc = FunctionDoc {
    name: "log2",
    aliases: &[],
    signature: "log2(x)",
    summary: "the logarithm of `x` to base 2",
    details: "A float without unit. NULL for 0 and negative numbers.",
    examples: &[
        Example {
            call: "log2(4096)",
            rows: "",
            result: "12",
        },
        Example {
            call: "log2(-1)",
            rows: "",
            result: "NULL",
        },
    ],
};

impl Scalar for Log2 {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        number_to_float(DOC.name, args)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_floats(&args[0], |x| if x > 0.0 { x.log2() } else { f64::NAN })
    }
}
