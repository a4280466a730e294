//! Text that is safe to print: control characters are escaped, so that a process name or a message
//! of a peer cannot control the terminal or forge a log line. And patterns of names.

use std::borrow::Cow;
use std::fmt::Write;

/// True for characters with control functions: C0 and C1 controls, line and paragraph separators,
/// and the marks that change the writing direction (Unicode Standard Annex 9).
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

/// `text` as one line, with every control character escaped: `\n`, `\t`, `\x1b`, `\u{202e}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, is_control)
}

/// `text` of several lines: as [`shown`], but line feeds and tabs are kept.
pub fn shown_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_control(c) && c != '\n' && c != '\t')
}

fn escaped(text: &str, acts: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        let written = match c {
            c if !acts(c) => out.write_char(c),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            c if (c as u32) < 0x100 => write!(out, "\\x{:02x}", c as u32),
            c => write!(out, "\\u{{{:x}}}", c as u32),
        };
        written.expect("a String accepts everything");
    }
    Cow::Owned(out)
}

/// Whether `text` matches `pattern`, in which `*` stands for any text.
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_control_the_terminal() {
        assert_eq!(shown("kworker/0:1"), "kworker/0:1");
        assert_eq!(shown("a\x1b[2Jb\nc\u{9b}1m"), "a\\x1b[2Jb\\nc\\x9b1m");
        assert_eq!(shown("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(shown("größe"), "größe");
    }

    #[test]
    fn lines_are_kept_apart() {
        assert_eq!(
            shown_lines("a\n\tb\r\x1b]0;t\x07"),
            "a\n\tb\\r\\x1b]0;t\\x07"
        );
        assert!(matches!(shown_lines("a\nb"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acb", false),
            ("*b*", "abc", true),
            ("ä*", "äb", true),
            ("abc", "ab", false),
            ("sched:*", "sched:sched_switch", true),
            ("*switch*", "sched:sched_switch", true),
            ("sched*wakeup", "sched:sched_switch", false),
            ("sched", "sched:sched_switch", false),
            ("*", "", true),
            ("a*a", "a", false),
            ("a*b*c", "a-b-b-c", true),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
    }
}
