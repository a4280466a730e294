//! `lower(t)`: the text in lower case.

use weir_model::{Column, Type};

use super::rows::map_texts;
use super::{Scalar, ScalarCall};
use crate::function::arguments::text_to;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `lower(t)`
pub struct Lower;

static DOC: FunctionDoc = FunctionDoc {
    name: "lower",
    aliases: &["lcase"],
    signature: "lower(t)",
    summary: "the text in lower case, by the rules of Unicode",
    details: "",
    examples: &[
        Example {
            call: "lower('Fio')",
            rows: "",
            result: "fio",
        },
        Example {
            call: "lower(NULL)",
            rows: "",
            result: "NULL",
        },
    ],
};

impl Scalar for Lower {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        text_to(DOC.name, args, Type::Text)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_texts(&args[0], |text| Ok(text.to_lowercase().into()))
    }
}
