//! `lpad(t, n [, fill])`: the text filled up to n characters at its start.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, nothing, padding};
use super::rows::intern;
use crate::function::{Example, FunctionDoc};

/// `lpad(t, n [, fill])`
pub static LPAD: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "lpad",
        aliases: &[],
        signature: "lpad(t, n [, fill])",
        summary: "the text filled up to `n` characters at its start, or its first `n` characters where it is longer",
        details: "Filled with blanks without `fill`.",
        examples: &[
            Example::of("lpad('7', 3, '0')", "007"),
            Example::of("lpad('sda', 5)", "  sda"),
            Example::of("lpad('nvme0n1', 4)", "nvme"),
        ],
    },
    takes: &[Type::Text, Type::Int, Type::Text],
    required: 2,
    returns: Type::Text,
    refuses: nothing,
    value: |args| {
        let (text, fill) = padding(args)?;
        Ok(Value::Text(intern(&(fill + text))?))
    },
};
