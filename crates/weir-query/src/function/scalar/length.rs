//! `length(t)`: the number of characters of a text.

use super::UnaryFunction;
use super::rows::map;
use crate::function::arguments::text_to;
use crate::function::element::Text;
use crate::function::{Example, FunctionDoc};
use weir_model::Type;

/// `length(t)`
pub static LENGTH: UnaryFunction = UnaryFunction {
    doc: &FunctionDoc {
        name: "length",
        aliases: &["char_length"],
        signature: "length(t)",
        summary: "the number of characters of the text",
        details: "Characters are Unicode code points.",
        examples: &[
            Example::of("length('nvme0n1')", "7"),
            Example::of("length('ä')", "1"),
            Example::of("length('')", "0"),
        ],
    },
    check: |name, args| text_to(name, args, Type::Int),
    eval: |_, x| {
        map(Type::Int, x, |t: Text| {
            Ok(Some(t.as_str().chars().count() as i64))
        })
    },
};
