//! Timestamps written as text: `'2026-01-31 12:00:00.5'`, in UTC (RFC 3339 with a blank or a `T`,
//! the zone `Z` or none).

use weir_model::NANOS_PER_SECOND;

/// Nanoseconds since the Unix epoch; `None` for a text that is not a timestamp, or one before 1677
/// or after 2262.
pub(crate) fn nanos(text: &str) -> Option<i64> {
    let text = text.trim().trim_end_matches(['Z', 'z']);
    let (date, time) = match text.split_once([' ', 'T', 't']) {
        Some((date, time)) => (date, time),
        None => (text, "00:00:00"),
    };
    let mut parts = date.split('-').map(number);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut units = clock.split(':').map(number);
    let (hour, minute) = (units.next()??, units.next()??);
    let second = match units.next() {
        Some(second) => second?,
        None => 0,
    };
    let closed = parts.next().is_none() && units.next().is_none();
    let in_range = (1..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !closed || !in_range || fraction.len() > 9 {
        return None;
    }
    let fraction = match fraction {
        "" => 0,
        digits => number(digits)? * 10_i64.pow(9 - digits.len() as u32),
    };
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(fraction)
}

fn number(digits: &str) -> Option<i64> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok())?
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && year % 100 != 0 || year % 400 == 0
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the Gregorian calendar.
pub(crate) fn days(year: i64, month: i64, day: i64) -> i64 {
    let before = year - 1;
    let leap_days = before / 4 - before / 100 + before / 400;
    let months: i64 = (1..month).map(|m| days_in(year, m)).sum();
    // 719,162 days lie between 0001-01-01 and 1970-01-01.
    before * 365 + leap_days + months + day - 1 - 719_162
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_parsed_to_nanoseconds() {
        assert_eq!(nanos("1970-01-01 00:00:00"), Some(0));
        assert_eq!(
            nanos("2009-02-13T23:31:30Z"),
            Some(1_234_567_890 * NANOS_PER_SECOND)
        );
        assert_eq!(
            nanos("2000-02-29 00:00:00.25"),
            Some(951_782_400_250_000_000)
        );
        assert_eq!(nanos("1969-12-31 23:59"), Some(-60 * NANOS_PER_SECOND));
    }

    #[test]
    fn malformed_timestamps_are_rejected() {
        let wrong = [
            "",
            "now",
            "2001-02-29",
            "2026-13-01",
            "2026-01-01 24:00",
            "2026-01-01 1:2:3:4",
            "9999-01-01",
        ];
        for text in wrong {
            assert_eq!(nanos(text), None, "{text}");
        }
    }
}
