//! [`Styles`]: the styles for the capabilities of the terminal ([`Ink`]). Everything shown by
//! colour is also shown by a letter or a mark.

use ratatui_core::style::{Color, Modifier, Style};
use weir_sink::plot::Ink;

/// The style of each element, depending on the capabilities of the terminal.
pub trait Styles: Copy {
    /// In a colour, if colours are supported.
    fn colored(self, color: Color) -> Style;
    /// The title.
    fn title(self) -> Style;
    /// Headers of columns.
    fn header(self) -> Style;
    /// The column by which lines are sorted.
    fn sorted(self) -> Style;
    /// The selected line; it has a mark as well.
    fn selected(self) -> Style;
    /// The name of a VM.
    fn vm(self) -> Style;
    /// Reads, writes and others.
    fn op(self, op: &str) -> Style;
    /// Sparklines and bars.
    fn bar(self) -> Style;
    /// A warning; the text contains it too.
    fn warning(self) -> Style;
    /// Secondary text.
    fn faint(self) -> Style;
    /// The sort direction.
    fn arrow(self, reversed: bool) -> &'static str;
}

impl Styles for Ink {
    fn colored(self, color: Color) -> Style {
        match self.color {
            true => Style::new().fg(color),
            false => Style::new(),
        }
    }

    fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn header(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn sorted(self) -> Style {
        self.header().add_modifier(Modifier::BOLD)
    }

    fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn vm(self) -> Style {
        self.colored(Color::Cyan)
    }

    fn op(self, op: &str) -> Style {
        self.colored(match op {
            "r" => Color::Green,
            "w" => Color::Yellow,
            _ => Color::Magenta,
        })
    }

    fn bar(self) -> Style {
        self.colored(Color::Blue)
    }

    fn warning(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn faint(self) -> Style {
        self.colored(Color::DarkGray)
    }

    fn arrow(self, reversed: bool) -> &'static str {
        match (self.unicode, reversed) {
            (true, false) => "▼",
            (true, true) => "▲",
            (false, false) => "v",
            (false, true) => "^",
        }
    }
}
