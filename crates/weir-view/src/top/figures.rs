//! [`Figure`]: numbers in few characters, for the columns of a screen.

/// The type of number of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// A plain number, in thousands if it is large.
    Count,
    /// Bytes, in powers of 1,024.
    Bytes,
    /// Nanoseconds.
    Span,
    /// A number close to 1.
    Ratio,
    /// A number from 0 to 100.
    Percent,
}

const COUNTS: [(&str, f64); 5] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)];

const BYTES: [(&str, f64); 6] = [
    ("", 1.0),
    ("K", 1024.0),
    ("M", 1048576.0),
    ("G", 1073741824.0),
    ("T", 1099511627776.0),
    ("P", 1125899906842624.0),
];

const SPANS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];

impl Figure {
    /// The number in at most six characters; `-` for none.
    pub fn show(self, x: Option<f64>) -> String {
        let Some(x) = x.filter(|x| x.is_finite()) else {
            return "-".into();
        };
        match self {
            Figure::Count => scaled(x, &COUNTS, 1e3),
            Figure::Bytes => scaled(x, &BYTES, 1024.0),
            Figure::Span => scaled(x, &SPANS, 1e3),
            Figure::Ratio if x < 9.995 => format!("{x:.2}"),
            Figure::Ratio if x < 99.95 => format!("{x:.1}"),
            Figure::Ratio => scaled(x, &COUNTS, 1e3),
            Figure::Percent => format!("{x:.0}"),
        }
    }
}

/// Three digits, and the unit of their magnitude.
fn scaled(x: f64, units: &[(&str, f64)], step: f64) -> String {
    let size = x.abs();
    // A value that would be rounded up to 1 of the next unit is printed in that unit.
    let last = units.len() - 1;
    let at = (0..last).find(|&i| size < units[i].1 * (step - 0.5));
    let (symbol, unit) = units[at.unwrap_or(last)];
    let x = x / unit;
    match x.abs() < 9.95 && (x.fract() != 0.0 || unit != 1.0) {
        true => format!("{x:.1}{symbol}"),
        false => format!("{x:.0}{symbol}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (Figure::Count, 0.0, "0"),
            (Figure::Count, 7.0, "7"),
            (Figure::Count, 0.5, "0.5"),
            (Figure::Count, 999.4, "999"),
            (Figure::Count, 999.6, "1.0k"),
            (Figure::Count, 15_230.0, "15k"),
            (Figure::Bytes, 512.0, "512"),
            (Figure::Bytes, 4096.0, "4.0K"),
            (Figure::Bytes, 1_048_000.0, "1023K"),
            (Figure::Bytes, 64_000_000.0, "61M"),
            (Figure::Span, 850.0, "850ns"),
            (Figure::Span, 4_210_000.0, "4.2ms"),
            (Figure::Span, 31e9, "31s"),
            (Figure::Ratio, 0.071, "0.07"),
            (Figure::Ratio, 31.96, "32.0"),
            (Figure::Ratio, 1234.0, "1.2k"),
            (Figure::Percent, 64.6, "65"),
        ];
        for (figure, x, text) in cases {
            assert_eq!(figure.show(Some(x)), text);
            assert!(figure.show(Some(x)).len() <= 6);
        }
        assert_eq!(Figure::Span.show(None), "-");
        assert_eq!(Figure::Ratio.show(Some(f64::NAN)), "-");
    }
}
