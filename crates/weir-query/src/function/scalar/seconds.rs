//! `seconds(x)`: the span of time in seconds.

use weir_model::{Column, Dimension};

use super::scaled;
use super::{Scalar, ScalarCall};
use crate::function::{Argument, EvalError, Example, FunctionDoc, Refusal, Returns};

/// `seconds(x)`
pub struct Seconds;

static DOC: FunctionDoc = FunctionDoc {
    name: "seconds",
    aliases: &[],
    signature: "seconds(x)",
    summary: "the span of time in seconds",
    details: "A float without unit. `x` has one, so that it does not matter which: `seconds(latency)`.",
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

    fn check(&self, args: &[Argument]) -> Result<Returns, Refusal> {
        scaled::check(DOC.name, args, Dimension::Time, "a span of time")
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        scaled::eval(call, args, 1e9)
    }
}
