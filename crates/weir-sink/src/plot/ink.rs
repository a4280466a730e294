//! [`Ink`]: the capabilities of the terminal, and the characters that represent an amount.

/// The capabilities of the terminal.
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
    /// ASCII without colours.
    pub const PLAIN: Ink = Ink {
        color: false,
        unicode: false,
    };

    /// From the environment: NO_COLOR (no-color.org), TERM, and the locale's character set in
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

    /// A level from 0 to 1 as one character.
    pub fn level(self, level: f64) -> char {
        let levels = if self.unicode { BLOCKS } else { LETTERS };
        let at = (level.clamp(0.0, 1.0) * (levels.len() - 1) as f64).round();
        levels[at as usize]
    }

    /// A bar of a share of `width`, to half a character if the terminal supports it.
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

    /// Values as characters of different height, from 0 to the greatest; a gap where there is none.
    pub fn spark(self, values: &[Option<f32>]) -> String {
        let most = values.iter().flatten().fold(0f32, |a, b| a.max(*b));
        let mark = |value: &Option<f32>| match value {
            Some(x) if most > 0.0 => self.level(f64::from(x / most)),
            Some(_) => self.level(0.0),
            None => ' ',
        };
        values.iter().map(mark).collect()
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
    fn capabilities_come_from_the_environment() {
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
        let ascii = Ink::PLAIN;
        assert_eq!(ascii.bar_of(0.5, 10), "#####");
        assert_eq!(ascii.bar_of(0.0, 10), "");
        assert_eq!(ascii.bar_of(1e-9, 10), "#", "what is there shows");
        let unicode = Ink {
            unicode: true,
            ..ascii
        };
        assert_eq!(unicode.bar_of(0.25, 10), "██▌");
    }

    #[test]
    fn a_spark_has_gaps() {
        let unicode = Ink {
            unicode: true,
            ..Ink::PLAIN
        };
        assert_eq!(unicode.spark(&[Some(0.0), None, Some(2.0)]), "▁ █");
    }
}
