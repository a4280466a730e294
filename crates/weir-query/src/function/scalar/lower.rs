//! `lower(t)`: the text in lower case.

use weir_model::{Column, Type, Unit};

use super::rows::map_texts;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, text};
use crate::function::{Argument, EvalError, Example, FunctionDoc, Refusal, Returns};

/// `lower(t)`
pub struct Lower;

static DOC: FunctionDoc = FunctionDoc {
    name: "lower",
    aliases: &["lcase"],
    signature: "lower(t)",
    summary: "the text in lower case, by Unicode's rules",
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

    fn check(&self, args: &[Argument]) -> Result<Returns, Refusal> {
        arity(DOC.name, args, 1, 1)?;
        text(DOC.name, args, 0)?;
        Ok(Returns {
            ty: Type::Text,
            unit: Unit::None,
        })
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_texts(&args[0], |text| Ok(text.to_lowercase().into()))
    }
}
