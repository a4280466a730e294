//! `date_trunc(part, ts)`: a timestamp rounded down.

use weir_model::{Type, Value};

use super::calendar::{check_part, named_part, start_of};
use super::row_function::{RowFunction, int_at};
use crate::function::{Example, FunctionDoc};

/// `date_trunc(part, ts)`
pub static DATE_TRUNC: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "date_trunc",
        aliases: &[],
        signature: "date_trunc(part, ts)",
        summary: "the timestamp rounded down to the start of its `part`, in UTC",
        details: "`part` is `year`, `quarter`, `month`, `week` (from Monday), `day`, `hour`, `minute`, `second`, `millisecond` or `microsecond`. `bucket(ts, 10 s)` rounds down to other intervals.",
        examples: &[
            Example::of(
                "date_trunc('minute', timestamp '2026-01-31 12:34:56') = timestamp '2026-01-31 12:34:00'",
                "true",
            ),
            Example::of(
                "date_trunc('week', timestamp '2026-02-01') = timestamp '2026-01-26'",
                "true",
            ),
        ],
    },
    takes: &[Type::Text, Type::Time],
    required: 2,
    returns: Type::Time,
    refuses: |args| check_part("date_trunc", args),
    value: |args| Ok(start_of(named_part(args), int_at(args, 1)).map_or(Value::Null, Value::Int)),
};
