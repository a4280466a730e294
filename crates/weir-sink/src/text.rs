//! Text that is safe to show: control characters written out, so that a process's name cannot steer
//! the terminal.

use std::borrow::Cow;
use std::fmt::Write;

use unicode_width::UnicodeWidthChar;

/// True for characters that act instead of showing: C0 and C1 controls, line and paragraph
/// separators, and the marks that turn the direction of writing (Unicode Standard Annex 9).
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

/// `text` with every control character written out: `\n`, `\t`, `\x1b`, `\u{202e}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_control(c) && (c as u32) < 0x100 => {
                write!(out, "\\x{:02x}", c as u32).expect("a String takes everything")
            }
            c if is_control(c) => {
                write!(out, "\\u{{{:x}}}", c as u32).expect("a String takes everything")
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// The beginning of `text`, whole characters of at most so many bytes.
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// How many terminal columns `text` takes.
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The beginning of `text` that fits into `columns`.
pub fn fitting(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    for (at, c) in text.char_indices() {
        taken += c.width().unwrap_or(0);
        if taken > columns {
            return &text[..at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(shown("kworker/0:1"), "kworker/0:1");
        assert_eq!(shown("a\x1b[2Jb\nc\u{9b}1m"), "a\\x1b[2Jb\\nc\\x9b1m");
        assert_eq!(shown("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(shown("größe"), "größe");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(width("日本"), 4);
        assert_eq!(fitting("日本語", 5), "日本");
    }
}
