//! `length(t)`: the number of characters of a text.

use weir_model::{Column, Type};

use super::rows::map;
use super::{Scalar, ScalarCall};
use crate::function::arguments::text_to;
use crate::function::element::Text;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `length(t)`
pub struct Length;

static DOC: FunctionDoc = FunctionDoc {
    name: "length",
    aliases: &["char_length"],
    signature: "length(t)",
    summary: "the number of characters of the text",
    details: "Characters are Unicode code points.",
    examples: &[
        Example {
            call: "length('nvme0n1')",
            rows: "",
            result: "7",
        },
        Example {
            call: "length('ä')",
            rows: "",
            result: "1",
        },
        Example {
            call: "length('')",
            rows: "",
            result: "0",
        },
    ],
};

impl Scalar for Length {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        text_to(DOC.name, args, Type::Int)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map(Type::Int, &args[0], |t: Text| {
            Ok(Some(t.as_str().chars().count() as i64))
        })
    }
}
