//! `log10(x)`: the logarithm to base 10.

use weir_model::Column;

use super::rows::map_floats;
use super::{Scalar, ScalarCall};
use crate::function::arguments::number_to_float;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `log10(x)`
pub struct Log10;

static DOC: FunctionDoc = FunctionDoc {
    name: "log10",
    aliases: &["log"],
    signature: "log10(x)",
    summary: "the logarithm of `x` to base 10",
    details: "A float without unit. NULL for 0 and negative numbers.",
    examples: &[
        Example {
            call: "log10(1000)",
            rows: "",
            result: "3",
        },
        Example {
            call: "log10(0)",
            rows: "",
            result: "NULL",
        },
    ],
};

impl Scalar for Log10 {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        number_to_float(DOC.name, args)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_floats(&args[0], |x| if x > 0.0 { x.log10() } else { f64::NAN })
    }
}
