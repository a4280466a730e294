//! The parts of a timestamp, in UTC and the Gregorian calendar.

use weir_model::{NANOS_PER_SECOND, Value};

use super::iso8601::civil;
use crate::expr::timestamp::days;
use crate::function::arguments::{argument_error, constant};
use crate::function::{Argument, ArgumentError};

/// The parts that `date_part` and `date_trunc` take, with their synonyms.
const PARTS: [(&str, &[&str]); 12] = [
    ("year", &["years"]),
    ("quarter", &[]),
    ("month", &["months"]),
    ("week", &["weeks"]),
    ("day", &["days"]),
    ("hour", &["hours"]),
    ("minute", &["min", "minutes"]),
    ("second", &["s", "sec", "seconds"]),
    ("millisecond", &["ms", "milliseconds"]),
    ("microsecond", &["us", "microseconds"]),
    ("nanosecond", &["ns", "nanoseconds"]),
    ("epoch", &[]),
];

/// Further parts of `date_part`.
const DAYS: [(&str, &[&str]); 2] = [("dow", &["dayofweek"]), ("doy", &["dayofyear"])];

/// The standard name of a part.
pub fn part(text: &str) -> Option<&'static str> {
    let is_it = |(name, names): &&(&'static str, &[&str])| {
        name.eq_ignore_ascii_case(text) || names.iter().any(|n| n.eq_ignore_ascii_case(text))
    };
    PARTS.iter().chain(&DAYS).find(is_it).map(|(name, _)| *name)
}

/// Requires that argument 0 is a constant that names a part, for `date_trunc` an interval.
pub fn check_part(name: &str, args: &[Argument]) -> Result<(), ArgumentError> {
    let text = constant(name, args, 0, "a part of a timestamp")?.to_string();
    let truncates = name == "date_trunc";
    match part(&text) {
        Some("epoch" | "dow" | "doy" | "nanosecond") if truncates => {}
        Some(_) => return Ok(()),
        None => {}
    }
    let known: Vec<&str> = PARTS[..10].iter().map(|p| p.0).collect();
    let more = if truncates {
        ""
    } else {
        ", nanosecond, epoch, dow, doy"
    };
    let message = format!("`{text}` is not one of {}{more}", known.join(", "));
    Err(argument_error(0, message))
}

/// The length of an interval of fixed length in nanoseconds.
fn length(part: &str) -> Option<i64> {
    Some(match part {
        "day" => 86_400 * NANOS_PER_SECOND,
        "hour" => 3600 * NANOS_PER_SECOND,
        "minute" => 60 * NANOS_PER_SECOND,
        "second" => NANOS_PER_SECOND,
        "millisecond" => 1_000_000,
        "microsecond" => 1000,
        "nanosecond" => 1,
        _ => return None,
    })
}

/// A day since 1970, and its year, month and day.
fn date(ns: i64) -> (i64, [i64; 3]) {
    let day = ns.div_euclid(86_400 * NANOS_PER_SECOND);
    let (year, month, of_month) = civil(i128::from(day));
    (day, [year as i64, month as i64, of_month as i64])
}

/// A part of a time.
pub fn part_of(name: &str, ns: i64) -> i64 {
    let (day, [year, month, of_month]) = date(ns);
    let of_second = ns.rem_euclid(NANOS_PER_SECOND);
    let seconds = ns.div_euclid(NANOS_PER_SECOND);
    match name {
        "year" => year,
        "quarter" => (month + 2) / 3,
        "month" => month,
        // The week of ISO 8601 is that of its Thursday.
        "week" => {
            let thursday = day - (day + 3).rem_euclid(7) + 3;
            let (year, _, _) = civil(i128::from(thursday));
            (thursday - days(year as i64, 1, 1)) / 7 + 1
        }
        "day" => of_month,
        "dow" => (day + 4).rem_euclid(7),
        "doy" => day - days(year, 1, 1) + 1,
        "hour" => seconds.rem_euclid(86_400) / 3600,
        "minute" => seconds.rem_euclid(3600) / 60,
        "second" => seconds.rem_euclid(60),
        "millisecond" => of_second / 1_000_000,
        "microsecond" => of_second / 1000,
        "nanosecond" => of_second,
        _ => seconds,
    }
}

/// The start of the interval that contains a time; `None` where 64 bits cannot hold it.
pub fn start_of(name: &str, ns: i64) -> Option<i64> {
    if let Some(length) = length(name) {
        return ns.checked_sub(ns.rem_euclid(length));
    }
    let (day, [year, month, _]) = date(ns);
    let first = match name {
        "year" => days(year, 1, 1),
        "quarter" => days(year, (month - 1) / 3 * 3 + 1, 1),
        "month" => days(year, month, 1),
        // Weeks begin on Monday; day 0 was a Thursday.
        _ => day - (day + 3).rem_euclid(7),
    };
    first.checked_mul(86_400 * NANOS_PER_SECOND)
}

/// The part that argument 0 names.
pub fn named_part(args: &[Value]) -> &'static str {
    let name = args.first().map(Value::to_string);
    name.as_deref().and_then(part).unwrap_or("second")
}
