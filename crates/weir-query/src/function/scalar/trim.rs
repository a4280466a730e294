//! `trim(t [, characters])`: the text without the characters at both ends.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, characters_at, nothing, text_at};
use super::rows::intern;
use crate::function::{Example, FunctionDoc};

/// `trim(t [, characters])`
pub static TRIM: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "trim",
        aliases: &["btrim"],
        signature: "trim(t [, characters])",
        summary: "the text without the characters at both ends that are among `characters`",
        details: "Blanks without `characters`.",
        examples: &[
            Example::of("trim('  sda ')", "sda"),
            Example::of("trim('xxsdax', 'x')", "sda"),
            Example::of("trim('/dev/', '/ved')", ""),
        ],
    },
    takes: &[Type::Text, Type::Text],
    required: 1,
    returns: Type::Text,
    refuses: nothing,
    value: |args| {
        let characters = characters_at(args, 1);
        let rest = text_at(args, 0).trim_matches(|c| characters.contains(c));
        Ok(Value::Text(intern(rest)?))
    },
};
