//! Text that is safe to print ([`weir_model::text`]), and its width.

use unicode_width::UnicodeWidthChar;
pub use weir_model::text::{is_control, shown, shown_lines};

/// The longest prefix of `text`, in whole characters, of at most this many bytes.
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The width of `text` in terminal columns.
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The longest prefix of `text` that fits into `columns`.
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

/// Rows of cells as aligned columns, separated by two spaces; the last column is not padded.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |c: usize| rows.iter().map(|row| width(&row[c])).max();
    let widths: Vec<usize> = (0..columns).map(|c| widest(c).unwrap_or(0)).collect();
    let mut lines = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, columns) in row.iter().zip(&widths) {
            let padding = columns - width(cell);
            line += &format!("{cell}{:padding$}  ", "");
        }
        lines += line.trim_end();
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(width("日本"), 4);
        assert_eq!(fitting("日本語", 5), "日本");
    }
}
