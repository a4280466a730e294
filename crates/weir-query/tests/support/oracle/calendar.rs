//! Timestamps as text, by iterating over the Gregorian calendar day by day, month by month, year by
//! year.

const NANOS: i64 = 1_000_000_000;

/// As `2009-02-13T23:31:30.000000001Z`.
pub fn write(ts: i64) -> String {
    let (seconds, nanos) = (ts.div_euclid(NANOS), ts.rem_euclid(NANOS));
    let (mut days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (mut year, mut month) = (1970, 1);
    while days < 0 {
        year -= 1;
        days += days_of_year(year);
    }
    while days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    while days >= days_of_month(year, month) {
        days -= days_of_month(year, month);
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let day = days + 1;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// The instant of `2009-02-13`, `2009-02-13 23:31` or `2009-02-13T23:31:30.5Z`; `None` for other
/// texts.
pub fn read(text: &str) -> Option<i64> {
    let text = text.trim_end_matches(['Z', 'z']);
    let (date, time) = text.split_once([' ', 'T', 't']).unwrap_or((text, "0:0"));
    let [year, month, day] = numbers(date, '-')?[..] else {
        return None;
    };
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let clock = numbers(clock, ':')?;
    let ([hour, minute] | [hour, minute, _]) = clock[..] else {
        return None;
    };
    let second = clock.get(2).copied().unwrap_or(0);
    let is_date = (1..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day);
    let is_fraction = fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit());
    if !is_date || hour > 23 || minute > 59 || second > 59 || !is_fraction {
        return None;
    }
    let years: i64 = match year {
        1970.. => (1970..year).map(days_of_year).sum(),
        _ => -(year..1970).map(days_of_year).sum::<i64>(),
    };
    let days = years + (1..month).map(|m| days_of_month(year, m)).sum::<i64>() + day - 1;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    let nanos: i64 = format!("{fraction:0<9}").parse().ok()?;
    i64::try_from(i128::from(seconds) * i128::from(NANOS) + i128::from(nanos)).ok()
}

fn numbers(text: &str, between: char) -> Option<Vec<i64>> {
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if plain { digits.parse().ok() } else { None }
    };
    text.split(between).map(number).collect()
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of_year(year: i64) -> i64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}
