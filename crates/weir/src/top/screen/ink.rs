//! [`Ink`]: what the terminal can show, and how things look with it. Colour never says anything
//! that a letter or a mark does not say as well.

use ratatui_core::style::{Color, Modifier, Style};

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ink {
    /// Colours.
    pub color: bool,
    /// Characters beyond ASCII.
    pub unicode: bool,
}

/// Levels of a sparkline, least first.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LETTERS: [char; 8] = ['.', '.', '-', '-', '=', '=', '#', '#'];

impl Ink {
    /// What the environment says: NO_COLOR (no-color.org), TERM, and the locale's character set in
    /// LC_ALL, LC_CTYPE or LANG, in this order (locale(7)).
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Ink {
        let set = |name: &str| variable(name).filter(|v| !v.is_empty());
        let plain = set("TERM").is_none_or(|t| t == "dumb" || t.ends_with("-m") || t == "vt100");
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let locale = locale.unwrap_or_default().to_uppercase();
        Ink {
            color: set("NO_COLOR").is_none() && !plain,
            unicode: locale.contains("UTF-8") || locale.contains("UTF8"),
        }
    }

    fn colored(self, color: Color) -> Style {
        match self.color {
            true => Style::new().fg(color),
            false => Style::new(),
        }
    }

    /// The title.
    pub fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Headers of columns.
    pub fn header(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// The column by which lines are sorted.
    pub fn sorted(self) -> Style {
        self.header().add_modifier(Modifier::BOLD)
    }

    /// The line that keys act upon; it has a mark as well.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The name of a VM.
    pub fn vm(self) -> Style {
        self.colored(Color::Cyan)
    }

    /// Reads, writes and others.
    pub fn op(self, op: &str) -> Style {
        self.colored(match op {
            "r" => Color::Green,
            "w" => Color::Yellow,
            _ => Color::Magenta,
        })
    }

    /// Sparklines and bars.
    pub fn bar(self) -> Style {
        self.colored(Color::Blue)
    }

    /// What should be noticed; the text says so too.
    pub fn warning(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// What may be passed over.
    pub fn faint(self) -> Style {
        self.colored(Color::DarkGray)
    }

    /// A level from 0 to 1 as one character.
    pub fn level(self, level: f64) -> char {
        let levels = if self.unicode { BLOCKS } else { LETTERS };
        let at = (level.clamp(0.0, 1.0) * (levels.len() - 1) as f64).round();
        levels[at as usize]
    }

    /// A bar of a share of `width`, to half a character where there are such.
    pub fn bar_of(self, share: f64, width: usize) -> String {
        let halves = (share.clamp(0.0, 1.0) * width as f64 * 2.0).ceil() as usize;
        let (full, half) = match self.unicode {
            true => ('█', "▌"),
            false => ('#', "#"),
        };
        let mut bar: String = std::iter::repeat_n(full, halves / 2).collect();
        if halves % 2 == 1 {
            bar += half;
        }
        bar
    }

    /// Which way lines are sorted.
    pub fn arrow(self, reversed: bool) -> &'static str {
        match (self.unicode, reversed) {
            (true, false) => "▼",
            (true, true) => "▲",
            (false, false) => "v",
            (false, true) => "^",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ink(variables: &[(&str, &str)]) -> (bool, bool) {
        let find = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let ink = Ink::of(find);
        (ink.color, ink.unicode)
    }

    #[test]
    fn the_environment_says_what_can_be_shown() {
        let xterm = ("TERM", "xterm-256color");
        assert_eq!(ink(&[xterm, ("LANG", "en_US.UTF-8")]), (true, true));
        assert_eq!(ink(&[xterm, ("NO_COLOR", "1")]), (false, false));
        assert_eq!(ink(&[xterm, ("NO_COLOR", "")]), (true, false));
        assert_eq!(ink(&[("TERM", "dumb"), ("LANG", "C.utf8")]), (false, true));
        let c_wins = [xterm, ("LANG", "de_DE.UTF-8"), ("LC_ALL", "C")];
        assert_eq!(ink(&c_wins), (true, false));
    }

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        let ascii = Ink {
            color: false,
            unicode: false,
        };
        assert_eq!(ascii.bar_of(0.5, 10), "#####");
        assert_eq!(ascii.bar_of(0.0, 10), "");
        assert_eq!(ascii.bar_of(1e-9, 10), "#", "what is there shows");
        let unicode = Ink {
            unicode: true,
            ..ascii
        };
        assert_eq!(unicode.bar_of(0.25, 10), "██▌");
    }
}
