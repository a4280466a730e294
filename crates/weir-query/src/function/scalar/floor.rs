//! `floor(x)`: the greatest integer not above x.

use weir_model::Column;

use super::rows::map_fractions;
use super::{Scalar, ScalarCall};
use crate::function::arguments::number_kept;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `floor(x)`
pub struct Floor;

static DOC: FunctionDoc = FunctionDoc {
    name: "floor",
    aliases: &[],
    signature: "floor(x)",
    summary: "the largest integer that is not greater than `x`",
    details: "Keeps the type and the unit of `x`.",
    examples: &[
        Example {
            call: "floor(2.7)",
            rows: "",
            result: "2",
        },
        Example {
            call: "floor(-2.7)",
            rows: "",
            result: "-3",
        },
        Example {
            call: "floor(5)",
            rows: "",
            result: "5",
        },
    ],
};

impl Scalar for Floor {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        number_kept(DOC.name, args)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_fractions(&args[0], f64::floor)
    }
}
