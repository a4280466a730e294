//! Instants in human- and machine-readable form, in UTC.

use weir_model::NANOS_PER_SECOND;

use crate::InstantUnit;

const SECONDS_PER_DAY: i64 = 86_400;

/// An instant as data: `2026-10-19T12:00:01.000250000Z` (RFC 3339), or the tick.
pub fn instant(at: i64, clock: InstantUnit) -> String {
    match clock {
        InstantUnit::Nanoseconds => timestamp(at),
        InstantUnit::Ticks => at.to_string(),
    }
}

/// Nanoseconds since the Unix epoch in RFC 3339 format, with all nine digits.
pub fn timestamp(at_ns: i64) -> String {
    let (days, seconds, nanos) = split(at_ns);
    let (year, month, day) = date(days);
    let (hour, minute, second) = clock_time(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// The same with `digits` digits of the fraction, at most 9, truncated: `2026-10-19T12:00:01Z` with
/// none.
pub fn timestamp_to(at_ns: i64, digits: usize) -> String {
    let text = timestamp(at_ns);
    let (seconds, fraction) = text.split_once('.').expect("a timestamp has a fraction");
    match digits {
        0 => format!("{seconds}Z"),
        _ => format!("{seconds}.{}Z", &fraction[..digits.min(9)]),
    }
}

/// The same for a table: `2026-10-19 12:00:01.000250`.
pub fn readable(at_ns: i64) -> String {
    let (days, seconds, nanos) = split(at_ns);
    let (year, month, day) = date(days);
    let (hour, minute, second) = clock_time(seconds);
    let micros = nanos / 1_000;
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
}

/// The time of day: `12:00:01.000250`.
pub fn time_of_day(at_ns: i64) -> String {
    let (_, seconds, nanos) = split(at_ns);
    let (hour, minute, second) = clock_time(seconds);
    format!("{hour:02}:{minute:02}:{second:02}.{:06}", nanos / 1_000)
}

/// Days since the epoch, seconds of the day, nanoseconds of the second.
pub(crate) fn split(at_ns: i64) -> (i64, i64, i64) {
    let seconds = at_ns.div_euclid(NANOS_PER_SECOND);
    let nanos = at_ns.rem_euclid(NANOS_PER_SECOND);
    let days = seconds.div_euclid(SECONDS_PER_DAY);
    (days, seconds.rem_euclid(SECONDS_PER_DAY), nanos)
}

pub(crate) fn clock_time(seconds: i64) -> (i64, i64, i64) {
    (seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// The date of a day counted from 1970-01-01 in the proleptic Gregorian calendar.
///
/// Years are counted from March, so that the leap day is a year's last; 146,097 days make 400 years
/// (H. Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`).
pub(crate) fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_follow_the_calendar() {
        // Checked with `date -u -d @SECONDS`.
        let pairs = [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000000Z"),
            (-1, "1969-12-31T23:59:59.000000000Z"),
        ];
        for (seconds, text) in pairs {
            assert_eq!(timestamp(seconds * NANOS_PER_SECOND), text);
        }
        assert_eq!(timestamp(i64::MAX), "2262-04-11T23:47:16.854775807Z");
        assert_eq!(timestamp(i64::MIN), "1677-09-21T00:12:43.145224192Z");
        assert_eq!(timestamp_to(1_999_999_999, 0), "1970-01-01T00:00:01Z");
        assert_eq!(timestamp_to(1_999_999_999, 3), "1970-01-01T00:00:01.999Z");
        assert_eq!(timestamp_to(i64::MIN, 12), timestamp(i64::MIN));
        assert_eq!(readable(1_500), "1970-01-01 00:00:00.000001");
        assert_eq!(time_of_day(-1), "23:59:59.999999");
    }
}
