//! `regexp_matches(t, pattern [, flags])`: whether a text contains a match of a regular expression.

use weir_model::{Type, Value};

use super::pattern::{compiled, valid};
use super::row_function::{RowFunction, text_at};
use crate::function::{Example, FunctionDoc};

/// `regexp_matches(t, pattern [, flags])`
pub static REGEXP_MATCHES: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "regexp_matches",
        aliases: &["regexp_like"],
        signature: "regexp_matches(t, pattern [, flags])",
        summary: "whether the text contains a match of the regular expression",
        details: "As an operator `t ~ 'pattern'`, without regard to case `t ~* 'pattern'`, negated `!~` and `!~*`. The pattern is a constant, in the syntax of the Rust crate `regex` (as in RE2: no back-references, no look-around); the time is linear in the length of the text. `^` and `$` anchor it. `flags` are `i` (ignore case), `s` (`.` matches a line feed), `m` (`^` and `$` match at lines) and `x` (blanks in the pattern are ignored).",
        examples: &[
            Example::of("regexp_matches('nvme0n1', '^nvme[0-9]+n1$')", "true"),
            Example::of("'sda' ~ 'nvme'", "false"),
            Example::of("'SDA' ~* '^sd'", "true"),
            Example::of("'sda' !~ '^sd'", "false"),
        ],
    },
    takes: &[Type::Text, Type::Text, Type::Text],
    required: 2,
    returns: Type::Bool,
    refuses: |args| valid("regexp_matches", args, 2),
    value: |args| Ok(Value::Bool(compiled(args, 2)?.is_match(text_at(args, 0)))),
};
