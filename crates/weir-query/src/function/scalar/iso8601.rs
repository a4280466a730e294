//! `iso8601(ts)`: a timestamp in ISO 8601 format.

use weir_model::{Column, Type};

use super::rows::{intern, map};
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, typed};
use crate::function::element::Text;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `iso8601(ts)`
pub struct Iso8601;

static DOC: FunctionDoc = FunctionDoc {
    name: "iso8601",
    aliases: &[],
    signature: "iso8601(ts)",
    summary: "the timestamp as a text, in UTC",
    details: "As in `2009-02-13T23:31:30.000000001Z`. Every distinct text is stored: use it on results, not on every request.",
    examples: &[
        Example::of(
            "iso8601(cast('2024-02-29' as timestamp))",
            "2024-02-29T00:00:00.000000000Z",
        ),
        Example::of(
            "iso8601(cast('2009-02-13 23:31:30.000000001' as timestamp))",
            "2009-02-13T23:31:30.000000001Z",
        ),
        Example::of(
            "iso8601(cast('1969-12-31 23:59:59.999999999' as timestamp))",
            "1969-12-31T23:59:59.999999999Z",
        ),
    ],
};

impl Scalar for Iso8601 {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, 1)?;
        typed(DOC.name, args, 0, &[Type::Time], "a timestamp")?;
        Ok(Returns::plain(Type::Text))
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        let scale = i128::from(call.args[0].unit().scale());
        map(Type::Text, &args[0], |ts: i64| {
            let text = formatted(i128::from(ts) * scale);
            Ok(Some(Text::new(intern(&text)?)))
        })
    }
}

/// A number of nanoseconds since 1970 in UTC.
fn formatted(ns: i128) -> String {
    let second = 1_000_000_000;
    let (seconds, ns) = (ns.div_euclid(second), ns.rem_euclid(second));
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ns:09}Z")
}

/// Year, month and day of a number of days since 1970, in the Gregorian calendar (Howard Hinnant,
/// "chrono-compatible low-level date algorithms", civil_from_days): years begin in March, so that
/// the leap day is their last.
pub(super) fn civil(days: i128) -> (i128, i128, i128) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i128::from(month <= 2), month, day)
}
