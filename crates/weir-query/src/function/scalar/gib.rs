//! `gib(x)`: the amount of data in GiB.

use weir_model::{Column, Dimension};

use super::scaled;
use super::{Scalar, ScalarCall};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `gib(x)`
pub struct Gib;

static DOC: FunctionDoc = FunctionDoc {
    name: "gib",
    aliases: &["gibibytes"],
    signature: "gib(x)",
    summary: "the amount of data in GiB",
    details: "A float without unit. `x` has any unit of the same dimension: `gib(bytes)`.",
    examples: &[
        Example {
            call: "gib(4194304 sectors)",
            rows: "",
            result: "2",
        },
        Example {
            call: "gib(524288 KiB)",
            rows: "",
            result: "0.5",
        },
    ],
};

impl Scalar for Gib {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        scaled::check(DOC.name, args, Dimension::Data, "an amount of data")
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        scaled::eval(call, args, 1073741824.0)
    }
}
