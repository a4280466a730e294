//! `lower(t)`: the text in lower case.

use weir_model::{Column, Type, Unit};

use super::rows::map_texts;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, text};
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
