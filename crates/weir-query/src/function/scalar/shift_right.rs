//! `shift_right(x, n)`: the bits of x moved by n.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, int_at, nothing};
use crate::function::{Example, FunctionDoc};

/// `shift_right(x, n)`
pub static SHIFT_RIGHT: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "shift_right",
        aliases: &[],
        signature: "shift_right(x, n)",
        summary: "the bits of `x` moved to the right by `n` places",
        details: "As an operator `x >> n`. NULL where `n` is negative. The sign is kept.",
        examples: &[Example::of("4096 >> 9", "8"), Example::of("-8 >> 1", "-4")],
    },
    takes: &[Type::Int, Type::Int],
    required: 2,
    returns: Type::Int,
    refuses: nothing,
    value: |args| {
        let (x, n) = (int_at(args, 0), int_at(args, 1));
        Ok(match u32::try_from(n) {
            _ if n < 0 => Value::Null,
            Ok(n) => Value::Int(x.checked_shr(n).unwrap_or(x >> 63)),
            Err(_) => Value::Int(x >> 63),
        })
    },
};
