//! `date_part(part, ts)`: a part of a timestamp.

use weir_model::{Type, Value};

use super::calendar::{check_part, named_part, part_of};
use super::row_function::{RowFunction, int_at};
use crate::function::{Example, FunctionDoc};

/// `date_part(part, ts)`
pub static DATE_PART: RowFunction = RowFunction {
    doc: &FunctionDoc {
        name: "date_part",
        aliases: &["datepart"],
        signature: "date_part(part, ts)",
        summary: "a part of the timestamp, an integer, in UTC",
        details: "Also `extract(hour from ts)`. The parts are `year`, `quarter`, `month`, `week` (ISO 8601), `day`, `hour`, `minute`, `second`, `millisecond`, `microsecond` and `nanosecond` (the last three of the second), `epoch` (seconds since 1970), `dow` (0 is Sunday) and `doy` (1 is January 1).",
        examples: &[
            Example::of("extract(hour from timestamp '2026-01-31 12:34:56')", "12"),
            Example::of("date_part('week', timestamp '2027-01-01')", "53"),
            Example::of("date_part('dow', timestamp '2026-02-01')", "0"),
            Example::of(
                "date_part('millisecond', timestamp '2026-01-31 00:00:01.25')",
                "250",
            ),
        ],
    },
    takes: &[Type::Text, Type::Time],
    required: 2,
    returns: Type::Int,
    refuses: |args| check_part("date_part", args),
    value: |args| Ok(Value::Int(part_of(named_part(args), int_at(args, 1)))),
};
