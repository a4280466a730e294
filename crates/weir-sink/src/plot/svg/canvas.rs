//! [`Canvas`]: elements of SVG 1.1 written as text; everything that comes from outside is escaped.

use std::fmt::Write;

use crate::text::shown;

/// Elements so far.
#[derive(Clone, Debug, Default)]
pub struct Canvas(String);

/// The anchor of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// At its beginning.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

const TAKES_ALL: &str = "a String takes everything";

impl Canvas {
    /// A rectangle of a class, with a tooltip.
    pub fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4], tooltip: Option<&str>) {
        let (x, y, width, height) = (number(x), number(y), number(width), number(height));
        write!(
            self.0,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\""
        )
        .expect(TAKES_ALL);
        match tooltip {
            None => self.0.push_str("/>\n"),
            Some(tooltip) => {
                let tooltip = escaped(tooltip);
                writeln!(self.0, "><title>{tooltip}</title></rect>").expect(TAKES_ALL);
            }
        }
    }

    /// A line from one point to another.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let (x1, y1, x2, y2) = (number(from.0), number(from.1), number(to.0), number(to.1));
        writeln!(
            self.0,
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"
        )
        .expect(TAKES_ALL);
    }

    /// A path, in the path language of SVG.
    pub fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            writeln!(self.0, "<path class=\"{class}\" d=\"{path}\"/>").expect(TAKES_ALL);
        }
    }

    /// A path with a tooltip.
    pub fn titled_path(&mut self, class: &str, path: &str, tooltip: &str) {
        let tooltip = escaped(tooltip);
        writeln!(
            self.0,
            "<path class=\"{class}\" d=\"{path}\"><title>{tooltip}</title></path>"
        )
        .expect(TAKES_ALL);
    }

    /// A text, turned by so many degrees.
    pub fn text(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        anchor: Anchor,
        turned: f64,
        text: &str,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y, text) = (number(x), number(y), escaped(text));
        let turn = match turned {
            0.0 => String::new(),
            degrees => format!(" transform=\"rotate({} {x} {y})\"", number(degrees)),
        };
        writeln!(
            self.0,
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\"{turn}>{text}</text>"
        )
        .expect(TAKES_ALL);
    }

    /// The elements.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// A coordinate, to a hundredth.
pub fn number(x: f64) -> String {
    let text = format!("{x:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "-0" | "" => "0".into(),
        _ => text.into(),
    }
}

/// Escapes text for XML and HTML: control characters become visible, markup characters become
/// references.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in shown(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Noncharacters that XML 1.0 does not allow (section 2.2).
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The approximate width of a text in a sans-serif font of this size.
pub fn text_width(text: &str, size: f64) -> f64 {
    let each = |c: char| match c {
        'i' | 'j' | 'l' | 't' | 'f' | '.' | ',' | ':' | '|' | ' ' | '(' | ')' | '-' => 0.34,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.9,
        'A'..='Z' | '>' | '<' => 0.68,
        c if c.is_ascii() => 0.57,
        _ => 1.0,
    };
    size * text.chars().map(each).sum::<f64>()
}
