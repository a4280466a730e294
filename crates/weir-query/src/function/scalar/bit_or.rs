//! `bit_or(x, y)`: the bits that either integer has.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, int_at, nothing};
use crate::function::{Example, FunctionDoc};

/// `bit_or(x, y)`
pub static BIT_OR: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "bit_or",
        aliases: &[],
        signature: "bit_or(x, y)",
        summary: "the bits that either integer has",
        details: "As an operator `x | y`.",
        examples: &[Example::of("12 | 10", "14")],
    },
    takes: &[Type::Int, Type::Int],
    required: 2,
    returns: Type::Int,
    refuses: nothing,
    value: |args| Ok(Value::Int(int_at(args, 0) | int_at(args, 1))),
};
