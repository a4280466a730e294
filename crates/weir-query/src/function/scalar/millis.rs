//! `millis(x)`: the duration in milliseconds.

use weir_model::{Column, Dimension};

use super::scaled;
use super::{Scalar, ScalarCall};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `millis(x)`
pub struct Millis;

static DOC: FunctionDoc = FunctionDoc {
    name: "millis",
    aliases: &["milliseconds"],
    signature: "millis(x)",
    summary: "the duration in milliseconds",
    details: "A float without unit. `x` has any unit of the same dimension: `millis(latency)`.",
    examples: &[
        Example {
            call: "millis(1500 us)",
            rows: "",
            result: "1.5",
        },
        Example {
            call: "millis(2 s)",
            rows: "",
            result: "2000",
        },
    ],
};

impl Scalar for Millis {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        scaled::check(DOC.name, args, Dimension::Time, "a duration")
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        scaled::eval(call, args, 1e6)
    }
}
