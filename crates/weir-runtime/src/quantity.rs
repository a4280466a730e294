//! Durations and sizes on the command line: `10s`, `250 ms`, `64MiB`.

use std::time::Duration;

use weir_model::Nanos;

/// Units of time, in nanoseconds.
const SPANS: &[(&str, f64)] = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("", 1e9),
    ("m", 60e9),
    ("min", 60e9),
    ("h", 3_600e9),
    ("d", 86_400e9),
];

/// Units of data, in bytes.
const SIZES: &[(&str, f64)] = &[
    ("", 1.0),
    ("b", 1.0),
    ("k", 1024.0),
    ("kib", 1024.0),
    ("kb", 1e3),
    ("m", 1048576.0),
    ("mib", 1048576.0),
    ("mb", 1e6),
    ("g", 1073741824.0),
    ("gib", 1073741824.0),
    ("gb", 1e9),
];

/// An effectively unlimited duration: instants are 64-bit nanoseconds.
pub const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A duration: a number with `ns`, `us`, `ms`, `s`, `m`, `h` or `d`; without a unit, seconds. Or
/// `forever`.
///
/// # Errors
/// A message for the user when the text is not a duration, or not above zero.
pub fn span(text: &str) -> Result<Duration, String> {
    if text.trim() == "forever" {
        return Ok(CENTURY);
    }
    let nanos = amount(text, SPANS).ok_or_else(|| {
        "expected a number with ns, us, ms, s, m, h or d, such as 10s or 250ms".to_owned()
    })?;
    match nanos >= 1.0 {
        true => Ok(Duration::from_nanos(
            nanos.min(CENTURY.as_nanos() as f64) as u64
        )),
        false => Err("a duration must be at least 1 ns".to_owned()),
    }
}

/// A duration as [`span()`] parses it, in the largest unit of which it is a whole number.
pub fn span_text(span: Duration) -> String {
    if span >= CENTURY {
        return "forever".to_owned();
    }
    whole(
        span.as_nanos(),
        &["d", "h", "m", "s", "ms", "us", "ns"],
        SPANS,
    )
}

/// A size as [`size()`] parses it, in the largest unit of which it is a whole number.
pub fn size_text(bytes: usize) -> String {
    whole(bytes as u128, &["GiB", "MiB", "KiB", "B"], SIZES)
}

/// `amount` in the first of `units` of which it is a whole number; the last unit is 1.
fn whole(amount: u128, units: &[&str], known: &[(&str, f64)]) -> String {
    let factor = |unit: &str| {
        let known = known
            .iter()
            .find(|(name, _)| unit.eq_ignore_ascii_case(name));
        known.expect("units are those that are read").1 as u128
    };
    let fits = |unit: &&&str| amount >= factor(unit) && amount.is_multiple_of(factor(unit));
    let unit = units
        .iter()
        .find(fits)
        .or(units.last())
        .expect("there are units");
    format!("{} {unit}", amount / factor(unit))
}

/// A duration in nanoseconds, at most the maximum of the type.
pub fn nanos(span: Duration) -> Nanos {
    Nanos::try_from(span.as_nanos()).unwrap_or(Nanos::MAX)
}

/// An amount of data in bytes: a number with `B`, `KiB`, `MiB`, `GiB` (or `k`, `M`, `G`), `kB`,
/// `MB`, `GB`.
///
/// # Errors
/// A message for the user when the text is not a size, or not above zero.
pub fn size(text: &str) -> Result<usize, String> {
    let bytes = amount(text, SIZES)
        .ok_or_else(|| "expected a number with KiB, MiB or GiB, such as 512MiB".to_owned())?;
    match (1.0..9e18).contains(&bytes) {
        true => Ok(bytes as usize),
        false => Err("a size must be at least 1 byte and at most 8 EiB".to_owned()),
    }
}

fn amount(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = units.iter().find(|(name, _)| *name == unit)?.1;
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units() {
        assert_eq!(span("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(span("1.5"), Ok(Duration::from_millis(1_500)));
        assert_eq!(span("250 ms"), Ok(Duration::from_millis(250)));
        assert_eq!(span("forever"), span("1000000d"));
        for bad in ["", "s", "-1s", "0", "5 parsecs", "1e3s", "1..2"] {
            assert!(span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for text in ["forever", "1 ns", "1500 ms", "90 m", "2 d"] {
            assert_eq!(span_text(span(text).unwrap()), text);
        }
        for text in ["1 B", "1500 B", "16 MiB", "3 GiB"] {
            assert_eq!(size_text(size(text).unwrap()), text);
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("512MiB"), Ok(512 << 20));
        assert_eq!(size("1g"), Ok(1 << 30));
        assert_eq!(size("10 kB"), Ok(10_000));
        for bad in ["", "MiB", "0", "99999999999999999999 GiB", "1 KiBB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
