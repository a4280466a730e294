//! Appends values to a line without intermediate texts.

use std::fmt::{Display, Write};

use weir_model::{NANOS_PER_SECOND, Symbol};

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
        // With a digit in front, all nine of the fraction are written.
        let fraction = NANOS_PER_SECOND + at_ns.rem_euclid(NANOS_PER_SECOND);
        line.push_str(&itoa::Buffer::new().format(fraction)[1..]);
        line.push('Z');
    }

    /// Appends [`time::instant`].
    pub(crate) fn push_instant(&mut self, line: &mut String, at: i64, clock: InstantUnit) {
        match clock {
            InstantUnit::Nanoseconds => self.push(line, at),
            InstantUnit::Ticks => push_int(line, at),
        }
    }
}

/// Texts as a format writes them. Most texts recur, and their form is found once.
pub(crate) struct TextForms {
    /// By the symbol's number, modulo [`TextForms::ENTRIES`].
    forms: Vec<(Symbol, String)>,
}

impl Default for TextForms {
    fn default() -> TextForms {
        TextForms {
            forms: vec![Default::default(); TextForms::ENTRIES],
        }
    }
}

impl TextForms {
    const ENTRIES: usize = 256;

    /// Longer forms are not stored.
    const BYTES_MAX: usize = 256;

    /// Appends the form of a text: what `write` appends, which depends on the text only, and is
    /// never nothing.
    #[inline]
    pub(crate) fn push(
        &mut self,
        line: &mut String,
        text: Symbol,
        write: impl FnOnce(&mut String, &str),
    ) {
        let (of, form) = &mut self.forms[text.id() as usize % TextForms::ENTRIES];
        if *of == text && !form.is_empty() {
            line.push_str(form);
            return;
        }
        let begin = line.len();
        write(line, text.as_str());
        let written = &line[begin..];
        if written.len() <= TextForms::BYTES_MAX {
            *of = text;
            form.clear();
            form.push_str(written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_its_own_form() {
        let mut forms = TextForms::default();
        let long = "x".repeat(2 * TextForms::BYTES_MAX);
        // More texts than entries, each of them twice in a row and twice apart.
        let names: Vec<String> = (0..3 * TextForms::ENTRIES)
            .map(|n| format!("vm{n}"))
            .collect();
        let names: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .chain([&*long, ""])
            .collect();
        for name in names.iter().flat_map(|name| [name; 2]).chain(&names) {
            let mut line = String::from("=");
            forms.push(&mut line, Symbol::new(name), |line, text| {
                push(line, format_args!("<{text}>"))
            });
            assert_eq!(line, format!("=<{name}>"));
        }
    }

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
