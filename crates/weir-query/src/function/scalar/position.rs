//! `position(part, t)`: where a text is in another one.

use weir_model::{Type, Value};

use super::row_function::{RowFunction, nothing, text_at};
use crate::function::{Example, FunctionDoc};

/// `position(part, t)`
pub static POSITION: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "position",
        aliases: &[],
        signature: "position(part, t)",
        summary: "the position of the first `part` in the text, from 1; 0 if there is none",
        details: "Also `position(part in t)`.",
        examples: &[
            Example::of("position('0' in 'nvme0n1')", "5"),
            Example::of("position('x', 'sda')", "0"),
            Example::of("position('', 'sda')", "1"),
        ],
    },
    takes: &[Type::Text, Type::Text],
    required: 2,
    returns: Type::Int,
    refuses: nothing,
    value: |args| {
        let (part, text) = (text_at(args, 0), text_at(args, 1));
        let at = text.find(part);
        let place = at.map_or(0, |at| text[..at].chars().count() as i64 + 1);
        Ok(Value::Int(place))
    },
};
