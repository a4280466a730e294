//! `rpad(t, n [, fill])`: the text filled up to n characters at its end.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, int_at, nothing, text_at};
use super::rows::{TEXT_BYTES_MAX, intern, too_long};
use crate::function::{Example, FunctionDoc};

/// `rpad(t, n [, fill])`
pub static RPAD: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "rpad",
        aliases: &[],
        signature: "rpad(t, n [, fill])",
        summary: "the text filled up to `n` characters at its end, or its first `n` characters where it is longer",
        details: "Filled with blanks without `fill`.",
        examples: &[
            Example::of("rpad('7', 3, '.')", "7.."),
            Example::of("rpad('nvme0n1', 4)", "nvme"),
        ],
    },
    takes: &[Type::Text, Type::Int, Type::Text],
    required: 2,
    returns: Type::Text,
    refuses: nothing,
    value: |args| {
        let text = text_at(args, 0);
        let length = usize::try_from(int_at(args, 1)).unwrap_or(0);
        let fill = args.get(2).map_or(" ", |_| text_at(args, 2));
        if length > TEXT_BYTES_MAX {
            return Err(too_long());
        }
        let missing = length.saturating_sub(text.chars().count());
        let fill = fill.chars().cycle().take(missing);
        let text = &text[..text.char_indices().nth(length).map_or(text.len(), |c| c.0)];
        let padded: String = text.chars().chain(fill).collect();
        Ok(Value::Text(intern(&padded)?))
    },
};
