//! `rtrim(t [, characters])`: the text without the characters at its end.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, characters_at, nothing, text_at};
use super::rows::intern;
use crate::function::{Example, FunctionDoc};

/// `rtrim(t [, characters])`
pub static RTRIM: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "rtrim",
        aliases: &[],
        signature: "rtrim(t [, characters])",
        summary: "the text without the characters at its end that are among `characters`",
        details: "Blanks without `characters`.",
        examples: &[
            Example::of("rtrim('sda  ')", "sda"),
            Example::of("rtrim('nvme0n1p1', '1p')", "nvme0n"),
        ],
    },
    takes: &[Type::Text, Type::Text],
    required: 1,
    returns: Type::Text,
    refuses: nothing,
    value: |args| {
        let characters = characters_at(args, 1);
        let rest = text_at(args, 0).trim_end_matches(|c| characters.contains(c));
        Ok(Value::Text(intern(rest)?))
    },
};
