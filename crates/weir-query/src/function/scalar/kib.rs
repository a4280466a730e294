//! `kib(x)`: the amount of data in KiB.

use weir_model::{Column, Dimension};

use super::scaled;
use super::{Scalar, ScalarCall};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `kib(x)`
pub struct Kib;

static DOC: FunctionDoc = FunctionDoc {
    name: "kib",
    aliases: &["kibibytes"],
    signature: "kib(x)",
    summary: "the amount of data in KiB",
    details: "A float without unit. `x` has any unit of the same dimension: `kib(bytes)`.",
    examples: &[
        Example {
            call: "kib(8 sectors)",
            rows: "",
            result: "4",
        },
        Example {
            call: "kib(512 B)",
            rows: "",
            result: "0.5",
        },
    ],
};

impl Scalar for Kib {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        scaled::check(DOC.name, args, Dimension::Data, "an amount of data")
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        scaled::eval(call, args, 1024.0)
    }
}
