//! `regexp_replace(t, pattern, by [, flags])`: the text with matches replaced.

use weir_model::{Type, Value};

use super::pattern::{compiled, replaced, valid};
use super::row_function::{RowFunction, text_at};
use super::rows::intern;
use crate::function::{Example, FunctionDoc};

/// `regexp_replace(t, pattern, by [, flags])`
pub static REGEXP_REPLACE: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "regexp_replace",
        aliases: &[],
        signature: "regexp_replace(t, pattern, by [, flags])",
        summary: "the text with the first match of the regular expression replaced, or all with the flag `g`",
        details: "`by` may refer to groups of the pattern: `\\1`, and `\\0` for the whole match. Pattern and flags are those of `regexp_matches`.",
        examples: &[
            Example::of("regexp_replace('nvme0n1', '[0-9]+', 'N')", "nvmeNn1"),
            Example::of("regexp_replace('nvme0n1', '[0-9]+', 'N', 'g')", "nvmeNnN"),
            Example::of(
                r"regexp_replace('sda1', '([a-z]+)([0-9]+)', '\2 of \1')",
                "1 of sda",
            ),
        ],
    },
    takes: &[Type::Text, Type::Text, Type::Text, Type::Text],
    required: 3,
    returns: Type::Text,
    refuses: |args| valid("regexp_replace", args, 3),
    value: |args| {
        let (text, by) = (text_at(args, 0), text_at(args, 2));
        let all = args.len() > 3 && text_at(args, 3).contains('g');
        let limit = if all { 0 } else { 1 };
        Ok(Value::Text(intern(&replaced(
            &compiled(args, 3)?,
            text,
            by,
            limit,
        )?)?))
    },
};
