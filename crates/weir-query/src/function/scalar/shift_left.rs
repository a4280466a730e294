//! `shift_left(x, n)`: the bits of x moved by n.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, int_at, nothing};
use crate::function::{Example, FunctionDoc};

/// `shift_left(x, n)`
pub static SHIFT_LEFT: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "shift_left",
        aliases: &[],
        signature: "shift_left(x, n)",
        summary: "the bits of `x` moved to the left by `n` places",
        details: "As an operator `x << n`. NULL where `n` is negative. Bits that are moved out are lost.",
        examples: &[Example::of("1 << 12", "4096"), Example::of("1 << 64", "0")],
    },
    takes: &[Type::Int, Type::Int],
    required: 2,
    returns: Type::Int,
    refuses: nothing,
    value: |args| {
        let (x, n) = (int_at(args, 0), int_at(args, 1));
        Ok(match u32::try_from(n) {
            _ if n < 0 => Value::Null,
            Ok(n) => Value::Int(x.checked_shl(n).unwrap_or(0)),
            Err(_) => Value::Int(0),
        })
    },
};
