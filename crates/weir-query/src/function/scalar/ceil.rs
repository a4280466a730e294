//! `ceil(x)`: the least integer not below x.

use weir_model::Column;

use super::rows::map_fractions;
use super::{Scalar, ScalarCall};
use crate::function::arguments::number_kept;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `ceil(x)`
pub struct Ceil;

static DOC: FunctionDoc = FunctionDoc {
    name: "ceil",
    aliases: &["ceiling"],
    signature: "ceil(x)",
    summary: "the smallest integer that is not less than `x`",
    details: "Keeps the type and the unit of `x`.",
    examples: &[
        Example {
            call: "ceil(2.1)",
            rows: "",
            result: "3",
        },
        Example {
            call: "ceil(-2.7)",
            rows: "",
            result: "-2",
        },
        Example {
            call: "ceil(5)",
            rows: "",
            result: "5",
        },
    ],
};

impl Scalar for Ceil {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        number_kept(DOC.name, args)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_fractions(&args[0], f64::ceil)
    }
}
