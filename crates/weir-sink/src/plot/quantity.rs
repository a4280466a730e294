//! [`Quantity`]: the unit of an axis or a bin, and the formatting of its values: `4 KiB`, `100 us`,
//! `-5,000`.

use weir_workload::MetricUnit;

use crate::number;

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Bytes, in powers of 1,024.
    Bytes,
    /// A duration in nanoseconds, in a scaled unit up to seconds.
    Nanoseconds,
    /// A long duration in nanoseconds: `90 s`, `12 min`, `2 h`.
    Elapsed,
    /// A plain number: requests, sectors, requests per second.
    Number,
    /// From 0 to 1, formatted as per cent.
    Share,
}

const BYTES: [(&str, f64); 7] = [
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("PiB", 1_125_899_906_842_624.0),
    ("EiB", 1_152_921_504_606_846_976.0),
];

const SPANS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];

const LONG_SPANS: [(&str, f64); 7] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("min", 60e9),
    ("h", 3_600e9),
    ("d", 86_400e9),
];

const COUNTS: [(&str, f64); 4] = [("", 1.0), ("M", 1e6), ("G", 1e9), ("T", 1e12)];

const SHARES: [(&str, f64); 1] = [("%", 0.01)];

impl From<MetricUnit> for Quantity {
    fn from(measure: MetricUnit) -> Quantity {
        match measure {
            MetricUnit::Bytes => Quantity::Bytes,
            MetricUnit::Nanoseconds => Quantity::Nanoseconds,
            MetricUnit::Sectors | MetricUnit::Requests => Quantity::Number,
        }
    }
}

impl Quantity {
    fn units(self) -> &'static [(&'static str, f64)] {
        match self {
            Quantity::Bytes => &BYTES,
            Quantity::Nanoseconds => &SPANS,
            Quantity::Elapsed => &LONG_SPANS,
            Quantity::Number => &COUNTS,
            Quantity::Share => &SHARES,
        }
    }

    /// A limit, to the last digit: `4 KiB` is 4,096 B, and 4,095 is `4,095 B`.
    pub fn exact(self, value: i64) -> String {
        if self == Quantity::Number {
            return thousands(&value.to_string());
        }
        let magnitude = value as f64;
        // A unit is suitable if at most one decimal place remains.
        let fits = |(_, unit): &&(&str, f64)| {
            let x = magnitude.abs() / unit * 2.0;
            x >= 2.0 && x.fract() == 0.0
        };
        let (symbol, unit) = match value {
            0 => self.units()[0],
            _ => *self.units().iter().rfind(fits).unwrap_or(&self.units()[0]),
        };
        joined(&trimmed(format!("{:.1}", magnitude / unit)), symbol)
    }

    /// A limit with as many digits as a mark has space for: exact if short, and if the neighbouring
    /// value is in another bin.
    pub fn limit(self, value: i64) -> String {
        let room = match self {
            Quantity::Nanoseconds | Quantity::Elapsed => 6,
            _ => 9,
        };
        match self.exact(value) {
            exact if exact.len() <= room => exact,
            _ => self.short(value as f64),
        }
    }

    /// A value in three digits at most where it is not a whole number: `1.02 us`, `12.5 ms`,
    /// `1,234`.
    pub fn short(self, value: f64) -> String {
        if !value.is_finite() {
            return "-".into();
        }
        if self == Quantity::Elapsed && value == 0.0 {
            return "0 s".into();
        }
        let size = value.abs();
        let step = |i: usize| self.units().get(i + 1).map(|(_, unit)| *unit);
        // A value that would round up to 1 of the next unit uses that unit.
        let fits = |i: &usize| step(*i).is_none_or(|next| size < next * 0.9995);
        let at = (0..self.units().len()).find(fits).expect("the last fits");
        let (symbol, unit) = self.units()[at];
        let x = value / unit;
        let text = match x.abs() {
            x if x < 9.995 => format!("{:.2}", value / unit),
            x if x < 99.95 => format!("{:.1}", value / unit),
            _ => format!("{:.0}", value / unit),
        };
        joined(&trimmed(text), symbol)
    }
}

fn joined(number: &str, symbol: &str) -> String {
    let number = thousands(number);
    match symbol {
        "" => number,
        _ => format!("{number} {symbol}"),
    }
}

/// Removes trailing zeros of a fraction, and the sign of zero.
fn trimmed(decimal: String) -> String {
    match number::trimmed(&decimal) {
        "-0" => "0".into(),
        text => text.into(),
    }
}

/// A decimal number with a comma between thousands.
pub fn thousands(number: &str) -> String {
    let (sign, rest) = match number.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", number),
    };
    let (whole, fraction) = match rest.split_once('.') {
        Some((whole, fraction)) => (whole, format!(".{fraction}")),
        None => (rest, String::new()),
    };
    let mut text = String::from(sign);
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + &fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_formatted_exactly() {
        let bytes = |x| Quantity::Bytes.exact(x);
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(4_095), "4,095 B");
        assert_eq!(bytes(4_096), "4 KiB");
        assert_eq!(bytes(1_536), "1.5 KiB");
        assert_eq!(bytes(524_288), "512 KiB");
        let time = |x| Quantity::Nanoseconds.exact(x);
        assert_eq!(time(0), "0 ns");
        assert_eq!(time(500_000), "500 us");
        assert_eq!(time(15_000_000), "15 ms");
        assert_eq!(Quantity::Number.exact(-500_000), "-500,000");
        assert_eq!(Quantity::Nanoseconds.limit(6_143), "6.14 us");
        assert_eq!(Quantity::Nanoseconds.limit(500_000), "500 us");
        assert_eq!(Quantity::Bytes.limit(65_535), "65,535 B");
    }

    #[test]
    fn a_value_has_three_digits() {
        let time = |x| Quantity::Nanoseconds.short(x);
        assert_eq!(time(1_023.0), "1.02 us");
        assert_eq!(time(999.9), "1 us");
        assert_eq!(time(12_540_000.0), "12.5 ms");
        assert_eq!(time(7_200e9), "7,200 s");
        assert_eq!(Quantity::Elapsed.short(7_200e9), "2 h");
        assert_eq!(Quantity::Number.short(46_974.0), "46,974");
        assert_eq!(Quantity::Share.short(0.125), "12.5 %");
        assert_eq!(Quantity::Share.short(0.0), "0 %");
        assert_eq!(Quantity::Bytes.short(4_205_978_112.0), "3.92 GiB");
    }
}
