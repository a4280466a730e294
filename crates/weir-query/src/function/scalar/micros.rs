//! `micros(x)`: the span of time in microseconds.

use weir_model::{Column, Dimension};

use super::scaled;
use super::{Scalar, ScalarCall};
use crate::function::{Argument, EvalError, Example, FunctionDoc, Refusal, Returns};

/// `micros(x)`
pub struct Micros;

static DOC: FunctionDoc = FunctionDoc {
    name: "micros",
    aliases: &["microseconds"],
    signature: "micros(x)",
    summary: "the span of time in microseconds",
    details: "A float without unit. `x` has one, so that it does not matter which: `micros(latency)`.",
    examples: &[
        Example {
            call: "micros(1500 ns)",
            rows: "",
            result: "1.5",
        },
        Example {
            call: "micros(2 ms)",
            rows: "",
            result: "2000",
        },
    ],
};

impl Scalar for Micros {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, Refusal> {
        scaled::check(DOC.name, args, Dimension::Time, "a span of time")
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        scaled::eval(call, args, 1e3)
    }
}
