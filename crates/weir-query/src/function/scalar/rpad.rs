//! `rpad(t, n [, fill])`: the text filled up to n characters at its end.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, nothing, padding};
use super::rows::intern;
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
        let (text, fill) = padding(args)?;
        Ok(Value::Text(intern(&(text.to_owned() + &fill))?))
    },
};
