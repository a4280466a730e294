//! `upper(t)`: the text in upper case.

use weir_model::{Column, Type};

use super::rows::map_texts;
use super::{Scalar, ScalarCall};
use crate::function::arguments::text_to;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `upper(t)`
pub struct Upper;

static DOC: FunctionDoc = FunctionDoc {
    name: "upper",
    aliases: &["ucase"],
    signature: "upper(t)",
    summary: "the text in upper case, by the rules of Unicode",
    details: "",
    examples: &[
        Example {
            call: "upper('sda')",
            rows: "",
            result: "SDA",
        },
        Example {
            call: "upper(NULL)",
            rows: "",
            result: "NULL",
        },
    ],
};

impl Scalar for Upper {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        text_to(DOC.name, args, Type::Text)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_texts(&args[0], |text| Ok(text.to_uppercase().into()))
    }
}
