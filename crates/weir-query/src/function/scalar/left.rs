//! `left(t, n)`: the first characters.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, byte_at, int_at, nothing, text_at};
use super::rows::intern;
use crate::function::{Example, FunctionDoc};

/// `left(t, n)`
pub static LEFT: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "left",
        aliases: &[],
        signature: "left(t, n)",
        summary: "the first `n` characters of the text",
        details: "A negative `n` leaves out the last characters: `left('nvme0n1', -2)` is `nvme0`.",
        examples: &[
            Example::of("left('nvme0n1', 4)", "nvme"),
            Example::of("left('nvme0n1', -2)", "nvme0"),
            Example::of("left('ab', 9)", "ab"),
        ],
    },
    takes: &[Type::Text, Type::Int],
    required: 2,
    returns: Type::Text,
    refuses: nothing,
    value: |args| {
        let (text, n) = (text_at(args, 0), int_at(args, 1));
        let kept = match usize::try_from(n) {
            Ok(n) => n,
            Err(_) => text
                .chars()
                .count()
                .saturating_sub(n.unsigned_abs().try_into().unwrap_or(usize::MAX)),
        };
        Ok(Value::Text(intern(&text[..byte_at(text, kept)])?))
    },
};
