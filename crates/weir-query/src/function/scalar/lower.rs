//! `lower(t)`: the text in lower case.

use super::UnaryFunction;
use super::rows::map_texts;
use crate::function::arguments::text_to;
use crate::function::{Example, FunctionDoc};
use weir_model::Type;

/// `lower(t)`
pub static LOWER: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "lower",
        aliases: &["lcase"],
        signature: "lower(t)",
        summary: "the text in lower case, by the rules of Unicode",
        details: "",
        examples: &[
            Example::of("lower('Fio')", "fio"),
            Example::of("lower(NULL)", "NULL"),
        ],
    },
    check: |name, args| text_to(name, args, Type::Text),
    eval: |_, x| map_texts(x, |text| Ok(text.to_lowercase().into())),
};
