//! `upper(t)`: the text in upper case.

use super::UnaryFunction;
use super::rows::map_texts;
use crate::function::arguments::text_to;
use crate::function::{Example, FunctionDoc};
use weir_model::Type;

/// `upper(t)`
pub static UPPER: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "upper",
        aliases: &["ucase"],
        signature: "upper(t)",
        summary: "the text in upper case, by the rules of Unicode",
        details: "",
        examples: &[
            Example::of("upper('sda')", "SDA"),
            Example::of("upper(NULL)", "NULL"),
        ],
    },
    check: |name, args| text_to(name, args, Type::Text),
    eval: |_, x| map_texts(x, |text| Ok(text.to_uppercase().into())),
};
