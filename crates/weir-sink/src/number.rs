//! Human-readable numbers: `1.2 ms`, `4.0 KiB`, and C's `%g`.

use weir_model::Unit;

/// A number in a scaled unit, or `None` if the unit is not scaled.
pub fn scaled(x: f64, unit: Unit) -> Option<String> {
    match unit {
        Unit::Nanoseconds => Some(scale(x, 1_000.0, &["ns", "us", "ms", "s"])),
        Unit::Microseconds => Some(scale(x, 1_000.0, &["us", "ms", "s"])),
        Unit::Bytes => Some(scale(
            x,
            1_024.0,
            &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"],
        )),
        Unit::Sectors | Unit::None => None,
    }
}

fn scale(x: f64, step: f64, symbols: &[&str]) -> String {
    if !x.is_finite() {
        return general(x);
    }
    let (mut x, mut at) = (x, 0);
    // One digit is shown after the point, so that 999.96 would read 1000.0.
    while x.abs() >= step - 0.05 && at + 1 < symbols.len() {
        x /= step;
        at += 1;
    }
    let symbol = symbols[at];
    match at {
        0 if x.fract() == 0.0 => format!("{x:.0} {symbol}"),
        _ => format!("{x:.1} {symbol}"),
    }
}

/// `x` as C's `%g` prints it: 6 significant digits, no trailing zeros (ISO/IEC 9899:2018,
/// 7.21.6.1).
pub fn general(x: f64) -> String {
    const DIGITS: i32 = 6;
    if x.is_nan() {
        return if x.is_sign_negative() { "-nan" } else { "nan" }.to_owned();
    }
    if x.is_infinite() {
        return if x < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    let scientific = format!("{x:.0$e}", DIGITS as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("{:e} writes an exponent");
    let exponent: i32 = exponent.parse().expect("{:e} writes an integer exponent");
    if (-4..DIGITS).contains(&exponent) {
        return trimmed(&format!("{x:.0$}", (DIGITS - 1 - exponent) as usize)).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

/// Removes trailing zeros of a fraction.
pub(crate) fn trimmed(decimal: &str) -> &str {
    match decimal.contains('.') {
        true => decimal.trim_end_matches('0').trim_end_matches('.'),
        false => decimal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_scaled_units() {
        let shown = |x, unit| scaled(x, unit).unwrap();
        assert_eq!(shown(850.0, Unit::Nanoseconds), "850 ns");
        assert_eq!(shown(850.5, Unit::Nanoseconds), "850.5 ns");
        assert_eq!(shown(1_234_567.0, Unit::Nanoseconds), "1.2 ms");
        assert_eq!(shown(999_960.0, Unit::Nanoseconds), "1.0 ms");
        assert_eq!(shown(-2e12, Unit::Nanoseconds), "-2000.0 s");
        assert_eq!(shown(4096.0, Unit::Bytes), "4.0 KiB");
        assert_eq!(shown(512.0, Unit::Bytes), "512 B");
        assert_eq!(shown(1500.0, Unit::Microseconds), "1.5 ms");
        assert_eq!(scaled(8.0, Unit::Sectors), None);
    }

    #[test]
    fn general_format_matches_percent_g() {
        // Each pair was printed by C: printf("%g").
        let pairs = [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.1, "1.1"),
            (100000.0, "100000"),
            (1e6, "1e+06"),
            (999999.5, "1e+06"),
            (123456.7, "123457"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
            (1.0 / 3.0, "0.333333"),
            (2.5e300, "2.5e+300"),
            (f64::INFINITY, "inf"),
        ];
        for (x, text) in pairs {
            assert_eq!(general(x), text);
        }
    }
}
