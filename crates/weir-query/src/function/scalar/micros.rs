//! `micros(x)`: the duration in microseconds.

use weir_model::{Column, Dimension};

use super::scaled;
use super::{Scalar, ScalarCall};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `micros(x)`
pub struct Micros;

static DOC: FunctionDoc = FunctionDoc {
    name: "micros",
    aliases: &["microseconds"],
    signature: "micros(x)",
    summary: "the duration in microseconds",
    details: "A float without unit. `x` has any unit of the same dimension: `micros(latency)`.",
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

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        scaled::check(DOC.name, args, Dimension::Time, "a duration")
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        scaled::eval(call, args, 1e3)
    }
}
