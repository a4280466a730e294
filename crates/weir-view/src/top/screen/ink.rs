//! [`Styles`]: how things look with what the terminal can show ([`Ink`]). Colour never says anything
//! that a letter or a mark does not say as well.

use ratatui_core::style::{Color, Modifier, Style};
use weir_sink::plot::Ink;

/// The look of each thing, as what the terminal can show allows.
pub trait Styles: Copy {
    /// In a colour, where there are colours.
    fn colored(self, color: Color) -> Style;
    /// The title.
    fn title(self) -> Style;
    /// Headers of columns.
    fn header(self) -> Style;
    /// The column by which lines are sorted.
    fn sorted(self) -> Style;
    /// The line that keys act upon; it has a mark as well.
    fn selected(self) -> Style;
    /// The name of a VM.
    fn vm(self) -> Style;
    /// Reads, writes and others.
    fn op(self, op: &str) -> Style;
    /// Sparklines and bars.
    fn bar(self) -> Style;
    /// What should be noticed; the text says so too.
    fn warning(self) -> Style;
    /// What may be passed over.
    fn faint(self) -> Style;
    /// Which way lines are sorted.
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
