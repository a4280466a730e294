//! `split_part(t, separator, n)`: a part between separators.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, int_at, nothing, text_at};
use super::rows::intern;
use crate::function::{Example, FunctionDoc};

/// `split_part(t, separator, n)`
pub static SPLIT_PART: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "split_part",
        aliases: &[],
        signature: "split_part(t, separator, n)",
        summary: "the `n`th part of the text between separators, from 1; from the end if `n` is negative",
        details: "An empty text where there is no such part.",
        examples: &[
            Example::of("split_part('/dev/mapper/data', '/', 3)", "mapper"),
            Example::of("split_part('/dev/mapper/data', '/', -1)", "data"),
            Example::of("split_part('a-b', '-', 7)", ""),
            Example::of("split_part('a-b', '', 1)", "a-b"),
        ],
    },
    takes: &[Type::Text, Type::Text, Type::Int],
    required: 3,
    returns: Type::Text,
    refuses: nothing,
    value: |args| {
        let (text, separator, n) = (text_at(args, 0), text_at(args, 1), int_at(args, 2));
        let parts: Vec<&str> = match separator {
            "" => vec![text],
            separator => text.split(separator).collect(),
        };
        let place = match n {
            n if n > 0 => usize::try_from(n - 1).ok(),
            n => usize::try_from(parts.len() as i64).ok().and_then(|len| {
                let back = usize::try_from(n.unsigned_abs()).ok().filter(|b| *b > 0)?;
                len.checked_sub(back)
            }),
        };
        let part = place.and_then(|place| parts.get(place)).copied();
        Ok(Value::Text(intern(part.unwrap_or_default())?))
    },
};
