//! Renders a diagnostic: the message, the line of the query that it is about, and a mark under the
//! position.
//!
//! ```text
//! error[W0103]: unknown aggregate `avrg`
//!  1 | SELECT vm, avrg(latency) FROM IO [Range 5 seconds] GROUP BY vm
//!    |            ^^^^ help: did you mean `avg`?
//! ```

use std::fmt::Write;

use super::{Diagnostic, Span};

/// The width of a tab in columns.
const TAB_COLUMNS: usize = 4;

/// Maximum width of a rendered line in columns; of longer lines the part around the mark is shown.
const LINE_COLUMNS_MAX: usize = 160;

/// Renders `diagnostic` about `text`, without colours, terminated by a line feed. `file` is named
/// where there is one.
///
/// A span outside of the text is treated as its end, so that any diagnostic can be rendered with
/// any text.
pub fn render(diagnostic: &Diagnostic, text: &str, file: Option<&str>) -> String {
    let span = within(diagnostic.span, text);
    let lines = Lines::new(text);
    let (first, last) = lines.of(span);
    let digits = (last + 1).to_string().len();
    let mut out = format!("{diagnostic}\n");
    if let Some(file) = file {
        let before = &text[lines.starts[first]..span.start];
        let column = before.chars().count() + 1;
        writeln!(out, "{:digits$}--> {file}:{}:{column}", "", first + 1).expect("memory holds it");
    }
    for number in [first, last] {
        let line = lines.text(number);
        let start = lines.starts[number];
        let from = span.start.saturating_sub(start).min(line.len());
        let to = if number == last {
            (span.end - start).min(line.len())
        } else {
            line.len()
        };
        let picture = RenderedLine::new(line, from, to);
        writeln!(out, " {:digits$} | {}", number + 1, picture.line).expect("memory holds it");
        let blank = " ".repeat(picture.mark_at);
        write!(
            out,
            " {:digits$} | {blank}{}",
            "",
            "^".repeat(picture.mark_columns)
        )
        .expect("memory holds it");
        if number == last {
            if let Some(help) = &diagnostic.help {
                write!(out, " help: {help}").expect("memory holds it");
            }
            out.push('\n');
            break;
        }
        out.push('\n');
        if last > first + 1 {
            writeln!(out, " {:digits$} | ...", "").expect("memory holds it");
        }
    }
    out
}

/// The span, clamped to the text and to whole characters.
fn within(span: Span, text: &str) -> Span {
    let floor = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = floor(span.start);
    Span::new(start, floor(span.end).max(start))
}

/// Where the lines of a text begin.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Lines<'a> {
        let after = text.match_indices('\n').map(|(i, _)| i + 1);
        Lines {
            text,
            starts: std::iter::once(0).chain(after).collect(),
        }
    }

    /// The numbers, from 0, of the first and the last line of a span. A position after the last
    /// line feed belongs to the last line that is not blank, which is where something is missing.
    fn of(&self, span: Span) -> (usize, usize) {
        let line = |at: usize| self.starts.partition_point(|s| *s <= at) - 1;
        let mut first = line(span.start);
        while span.start == self.text.len() && first > 0 && self.text(first).trim().is_empty() {
            first -= 1;
        }
        let last = line(span.end.saturating_sub(1).max(span.start));
        (
            first,
            last.max(first).min(if span.start == self.text.len() {
                first
            } else {
                last
            }),
        )
    }

    fn text(&self, number: usize) -> &'a str {
        let end = self
            .starts
            .get(number + 1)
            .map_or(self.text.len(), |next| next - 1);
        self.text[self.starts[number]..end].trim_end_matches('\r')
    }
}

/// A rendered line and the columns of the mark.
struct RenderedLine {
    line: String,
    mark_at: usize,
    mark_columns: usize,
}

impl RenderedLine {
    /// `from..to` are the bytes to mark; an empty range marks one column.
    fn new(line: &str, from: usize, to: usize) -> RenderedLine {
        let mut shown: Vec<(String, usize)> = Vec::new();
        let (mut mark_at, mut mark_columns, mut columns) = (None, 0, 0);
        for (at, c) in line.char_indices() {
            if at >= from && mark_at.is_none() {
                mark_at = Some(columns);
            }
            let (cell, width) = match c {
                '\t' => (" ".repeat(TAB_COLUMNS), TAB_COLUMNS),
                c if c.is_control() => ("\u{fffd}".into(), 1),
                c => (c.to_string(), width(c)),
            };
            if at >= from && at < to {
                mark_columns += width;
            }
            columns += width;
            shown.push((cell, width));
        }
        let mark_at = mark_at.unwrap_or(columns);
        cut(&shown, mark_at, mark_columns.max(1))
    }
}

/// Shortens a long line to the part around the mark.
fn cut(shown: &[(String, usize)], mark_at: usize, mark_columns: usize) -> RenderedLine {
    let first = mark_at.saturating_sub(LINE_COLUMNS_MAX / 2);
    let total: usize = shown.iter().map(|(_, width)| width).sum();
    let first = if total <= LINE_COLUMNS_MAX { 0 } else { first };
    let end = first + LINE_COLUMNS_MAX;
    let (mut line, mut columns, mut cut_columns) = (String::new(), 0, 0);
    for (cell, width) in shown {
        if columns < first {
            cut_columns += width;
        } else if columns < end {
            line.push_str(cell);
        }
        columns += width;
    }
    let ellipsis = if cut_columns > 0 { "..." } else { "" };
    let tail = if total > end { "..." } else { "" };
    let mark_at = mark_at - cut_columns.min(mark_at) + ellipsis.len();
    let room = (LINE_COLUMNS_MAX + ellipsis.len())
        .saturating_sub(mark_at)
        .max(1);
    RenderedLine {
        line: format!("{ellipsis}{line}{tail}"),
        mark_at,
        mark_columns: mark_columns.min(room),
    }
}

/// The number of terminal columns of a character: none for combining marks, two for the wide ones
/// of East Asia and for pictographs (the blocks of Unicode's EastAsianWidth.txt that are wide
/// throughout), one for the rest.
fn width(c: char) -> usize {
    match u32::from(c) {
        0x300..=0x36f | 0x200b..=0x200f | 0x20d0..=0x20ff | 0xfe00..=0xfe0f | 0xfeff => 0,
        0x1100..=0x115f
        | 0x2e80..=0x303e
        | 0x3041..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1f64f
        | 0x1f680..=0x1f6ff
        | 0x1f900..=0x1f9ff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(text: &str, start: usize, end: usize) -> String {
        let diagnostic = Diagnostic::error("W0000", Span::new(start, end), "wrong");
        let all = render(&diagnostic.help("do right"), text, None);
        all.strip_prefix("error[W0000]: wrong\n")
            .expect("the message comes first")
            .to_owned()
    }

    #[test]
    fn the_mark_is_under_the_word() {
        assert_eq!(
            picture("a bcd e", 2, 5),
            " 1 | a bcd e\n   |   ^^^ help: do right\n"
        );
    }

    #[test]
    fn the_mark_is_aligned_after_tabs_and_wide_characters() {
        assert_eq!(
            picture("\tx", 1, 2),
            " 1 |     x\n   |     ^ help: do right\n"
        );
        assert_eq!(
            picture("'日本' x", 9, 10),
            " 1 | '日本' x\n   |        ^ help: do right\n"
        );
        assert_eq!(
            picture("'日本' x", 1, 7),
            " 1 | '日本' x\n   |  ^^^^ help: do right\n"
        );
    }

    #[test]
    fn a_long_span_shows_its_first_and_last_line() {
        let expected = " 1 | a b\n   |   ^\n   | ...\n 3 | d e\n   | ^ help: do right\n";
        assert_eq!(picture("a b\nc\nd e", 2, 7), expected);
    }

    #[test]
    fn the_end_of_the_text_can_be_marked() {
        assert_eq!(
            picture("select\n", 7, 7),
            " 1 | select\n   |       ^ help: do right\n"
        );
        assert_eq!(picture("", 0, 0), " 1 | \n   | ^ help: do right\n");
        assert_eq!(picture("ab", 90, 99), " 1 | ab\n   |   ^ help: do right\n");
    }

    #[test]
    fn a_very_long_line_is_shortened_around_the_mark() {
        let text = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let shown = picture(&text, 500, 501);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].len() < 200);
        assert_eq!(lines[0].find('X'), lines[1].find('^'));
    }
}
