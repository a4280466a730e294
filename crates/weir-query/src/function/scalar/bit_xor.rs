//! `bit_xor(x, y)`: the bits that one of the integers has and the other has not.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, int_at, nothing};
use crate::function::{Example, FunctionDoc};

/// `bit_xor(x, y)`
pub static BIT_XOR: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "bit_xor",
        aliases: &[],
        signature: "bit_xor(x, y)",
        summary: "the bits that one of the integers has and the other has not",
        details: "`#` begins a comment in CQL, so it has no operator.",
        examples: &[Example::of("bit_xor(12, 10)", "6")],
    },
    takes: &[Type::Int, Type::Int],
    required: 2,
    returns: Type::Int,
    refuses: nothing,
    value: |args| Ok(Value::Int(int_at(args, 0) ^ int_at(args, 1))),
};
