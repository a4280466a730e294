//! Appends values to a line without intermediate texts.

use std::fmt::{Display, Write};

use weir_model::NANOS_PER_SECOND;

use crate::{InstantUnit, time};

/// Appends what a value displays.
pub(crate) fn push(line: &mut String, x: impl Display) {
    write!(line, "{x}").expect("a String takes everything");
}

/// Appends an integer.
#[inline]
pub(crate) fn push_int(line: &mut String, x: i64) {
    line.push_str(itoa::Buffer::new().format(x));
}

/// Whether a text consists of printable ASCII characters other than these.
#[inline]
pub(crate) fn is_plain(text: &str, except: &[u8]) -> bool {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && !except.contains(&byte);
    text.bytes().all(is_plain)
}

/// Timestamps, most of which are in the second of the previous one.
#[derive(Default)]
pub(crate) struct Timestamps {
    second: i64,
    /// The text up to the fraction, of `second`; empty before the first one.
    whole: String,
}

impl Timestamps {
    /// Appends [`time::timestamp`].
    pub(crate) fn push(&mut self, line: &mut String, at_ns: i64) {
        const FRACTION: usize = "000000000Z".len();
        let second = at_ns.div_euclid(NANOS_PER_SECOND);
        if second != self.second || self.whole.is_empty() {
            let mut text = time::timestamp(at_ns);
            text.truncate(text.len() - FRACTION);
            (self.second, self.whole) = (second, text);
        }
        line.push_str(&self.whole);
        let mut fraction = *b"000000000Z";
        let mut rest = at_ns.rem_euclid(NANOS_PER_SECOND);
        for digit in fraction[..FRACTION - 1].iter_mut().rev() {
            *digit += (rest % 10) as u8;
            rest /= 10;
        }
        line.push_str(std::str::from_utf8(&fraction).expect("digits are ASCII"));
    }

    /// Appends [`time::instant`].
    pub(crate) fn push_instant(&mut self, line: &mut String, at: i64, clock: InstantUnit) {
        match clock {
            InstantUnit::Nanoseconds => self.push(line, at),
            InstantUnit::Ticks => push_int(line, at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_those_of_the_calendar() {
        let mut timestamps = Timestamps::default();
        let near = [-1, 0, 1, 999_999_999, NANOS_PER_SECOND];
        let far = [i64::MIN, i64::MAX, 1_700_000_000_123_456_789];
        for at in near.into_iter().chain(far).chain(near) {
            let mut line = String::from("at ");
            timestamps.push(&mut line, at);
            assert_eq!(line, format!("at {}", time::timestamp(at)));
        }
    }

    #[test]
    fn a_plain_text_has_no_control_characters() {
        assert!(is_plain("sda 1", b"\","));
        for text in ["a\"b", "a,b", "a\nb", "ä", "\u{7f}"] {
            assert!(!is_plain(text, b"\","), "{text:?}");
        }
        assert!(is_plain("", b""));
    }
}
