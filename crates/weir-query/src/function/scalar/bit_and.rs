//! `bit_and(x, y)`: the bits that both integers have.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, int_at, nothing};
use crate::function::{Example, FunctionDoc};

/// `bit_and(x, y)`
pub static BIT_AND: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "bit_and",
        aliases: &[],
        signature: "bit_and(x, y)",
        summary: "the bits that both integers have",
        details: "As an operator `x & y`.",
        examples: &[Example::of("12 & 10", "8"), Example::of("-1 & 255", "255")],
    },
    takes: &[Type::Int, Type::Int],
    required: 2,
    returns: Type::Int,
    refuses: nothing,
    value: |args| Ok(Value::Int(int_at(args, 0) & int_at(args, 1))),
};
