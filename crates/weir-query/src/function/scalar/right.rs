//! `right(t, n)`: the last characters.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, byte_at, int_at, nothing, text_at};
use super::rows::intern;
use crate::function::{Example, FunctionDoc};

/// `right(t, n)`
pub static RIGHT: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "right",
        aliases: &[],
        signature: "right(t, n)",
        summary: "the last `n` characters of the text",
        details: "A negative `n` leaves out the first characters: `right('nvme0n1', -4)` is `0n1`.",
        examples: &[
            Example::of("right('nvme0n1', 2)", "n1"),
            Example::of("right('nvme0n1', -4)", "0n1"),
            Example::of("right('ab', 9)", "ab"),
        ],
    },
    takes: &[Type::Text, Type::Int],
    required: 2,
    returns: Type::Text,
    refuses: nothing,
    value: |args| {
        let (text, n) = (text_at(args, 0), int_at(args, 1));
        let skipped = match usize::try_from(n) {
            Ok(n) => text.chars().count().saturating_sub(n),
            Err(_) => n.unsigned_abs().try_into().unwrap_or(usize::MAX),
        };
        Ok(Value::Text(intern(&text[byte_at(text, skipped)..])?))
    },
};
