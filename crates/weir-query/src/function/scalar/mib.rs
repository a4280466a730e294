//! `mib(x)`: the amount of data in MiB.

use weir_model::{Column, Dimension};

use super::scaled;
use super::{Scalar, ScalarCall};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `mib(x)`
pub struct Mib;

static DOC: FunctionDoc = FunctionDoc {
    name: "mib",
    aliases: &["mebibytes"],
    signature: "mib(x)",
    summary: "the amount of data in MiB",
    details: "A float without unit. `x` has any unit of the same dimension: `mib(bytes)`.",
    examples: &[
        Example {
            call: "mib(2048 sectors)",
            rows: "",
            result: "1",
        },
        Example {
            call: "mib(1536 KiB)",
            rows: "",
            result: "1.5",
        },
    ],
};

impl Scalar for Mib {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        scaled::check(DOC.name, args, Dimension::Data, "an amount of data")
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        scaled::eval(call, args, 1048576.0)
    }
}
