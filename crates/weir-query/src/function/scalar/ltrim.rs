//! `ltrim(t [, characters])`: the text without the characters at its start.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, characters_at, nothing, text_at};
use super::rows::intern;
use crate::function::{Example, FunctionDoc};

/// `ltrim(t [, characters])`
pub static LTRIM: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "ltrim",
        aliases: &[],
        signature: "ltrim(t [, characters])",
        summary: "the text without the characters at its start that are among `characters`",
        details: "Blanks without `characters`.",
        examples: &[
            Example::of("ltrim('  sda ') || '.'", "sda ."),
            Example::of("ltrim('00042', '0')", "42"),
        ],
    },
    takes: &[Type::Text, Type::Text],
    required: 1,
    returns: Type::Text,
    refuses: nothing,
    value: |args| {
        let characters = characters_at(args, 1);
        let rest = text_at(args, 0).trim_start_matches(|c| characters.contains(c));
        Ok(Value::Text(intern(rest)?))
    },
};
