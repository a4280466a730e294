//! `seconds(x)`: the duration in seconds.

use weir_model::{Column, Dimension};

use super::scaled;
use super::{Scalar, ScalarCall};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `seconds(x)`
pub struct Seconds;

static DOC: FunctionDoc = FunctionDoc {
    name: "seconds",
    aliases: &[],
    signature: "seconds(x)",
    summary: "the duration in seconds",
    details: "A float without unit. `x` has any unit of the same dimension: `seconds(latency)`.",
    examples: &[
        Example {
            call: "seconds(1500 ms)",
            rows: "",
            result: "1.5",
        },
        Example {
            call: "seconds(250 us)",
            rows: "",
            result: "0.00025",
        },
    ],
};

impl Scalar for Seconds {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        scaled::check(DOC.name, args, Dimension::Time, "a duration")
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        scaled::eval(call, args, 1e9)
    }
}
