//! A heat map in characters: one shade per cell, darker for larger counts, in steps of equal ratio.

use super::{cell, under};
use crate::plot::{HeatMap, Ink, thousands};
use crate::text::{shown, width};

/// Shades, least first.
const LETTERS: [&str; 9] = [".", ":", "-", "=", "+", "*", "#", "%", "@"];
const SHADES: [&str; 4] = ["░", "▒", "▓", "█"];

/// Colours of the 256-colour palette, from dark blue over green to yellow; each is brighter than
/// the previous one, so that they also differ without colour vision.
const COLORS: [u8; 9] = [18, 24, 30, 36, 42, 77, 113, 149, 227];

/// The widest label of a row.
const LABEL_MAX: usize = 12;

/// Draws a heat map, the lowest band at the bottom. Bands are merged if there is not enough space.
pub fn heat_map(map: &HeatMap, ink: Ink, columns: usize) -> String {
    let mut text = format!("{}\n", shown(&map.title));
    let (wide, high) = (map.x.labels.len(), map.y.labels.len());
    if map.most() == 0 {
        return text + "  no values\n";
    }
    let label = map.y.labels.iter().map(|l| width(l)).max().unwrap_or(0);
    let label = label.clamp(1, LABEL_MAX);
    let room = columns.saturating_sub(label + 3).max(1);
    let together = wide.div_ceil(room);
    let shown_bands = wide.div_ceil(together);
    let characters = (room / shown_bands).clamp(1, 3);
    let sum = |band: usize, row: usize| -> u64 {
        let first = band * together;
        let cells = first..(first + together).min(wide);
        cells.map(|column| map.count(column, row)).sum()
    };
    let all = (0..shown_bands).flat_map(|band| (0..high).map(move |row| (band, row)));
    let most = all.map(|(band, row)| sum(band, row)).max().unwrap_or(0);
    text += &format!("{}\n", shown(&map.y.title));
    for row in (0..high).rev() {
        let cells: Vec<Option<usize>> = (0..shown_bands)
            .map(|band| level(sum(band, row), most, ink))
            .collect();
        let cells = painted(&cells, characters, ink);
        text += &format!("{} |{cells}|\n", cell(&map.y.labels[row], label, true));
    }
    let axis = shown_bands * characters;
    let labels: Vec<(usize, String)> = (0..shown_bands)
        .map(|band| (band * characters, map.x.labels[band * together].clone()))
        .collect();
    let indent = " ".repeat(label + 2);
    text += &format!("{indent}{}\n", under(&spread(&labels), axis));
    text += &format!("{indent}{}\n", shown(&map.x.title));
    text + &legend(map, most, ink, &indent)
}

/// The first, the last and some between, with two columns at least from one to the next.
fn spread(labels: &[(usize, String)]) -> Vec<(usize, String)> {
    let widest = labels.iter().map(|(_, l)| width(l)).max().unwrap_or(0) + 2;
    let span = labels.last().map_or(0, |(place, _)| *place).max(1);
    let every = labels.len().div_ceil((span / widest).max(1));
    labels.iter().step_by(every.max(1)).cloned().collect()
}

/// The number of shades.
fn levels(ink: Ink) -> usize {
    match (ink.color, ink.unicode) {
        (true, _) => COLORS.len(),
        (false, true) => SHADES.len(),
        (false, false) => LETTERS.len(),
    }
}

/// The shade of a count: none for nothing, the first for one, the last for the most.
fn level(count: u64, most: u64, ink: Ink) -> Option<usize> {
    let last = levels(ink) - 1;
    match (count, most) {
        (0, _) => None,
        (_, 1) => Some(last),
        _ => {
            let share = (count as f64).ln() / (most as f64).ln();
            Some(((share * last as f64).round() as usize).min(last))
        }
    }
}

/// A line of cells of equal width; neighbours of one colour share its escape sequence.
fn painted(cells: &[Option<usize>], characters: usize, ink: Ink) -> String {
    let mut text = String::new();
    let mut color = None;
    for &cell in cells {
        if ink.color && cell != color {
            match cell {
                Some(level) => text += &format!("\x1b[38;5;{}m", COLORS[level]),
                None => text += "\x1b[0m",
            }
            color = cell;
        }
        text += &glyph(cell, ink).repeat(characters);
    }
    if color.is_some() {
        text += "\x1b[0m";
    }
    text
}

fn glyph(cell: Option<usize>, ink: Ink) -> &'static str {
    match (cell, ink.color, ink.unicode) {
        (None, ..) => " ",
        (Some(_), true, true) => "█",
        (Some(level), false, true) => SHADES[level],
        (Some(level), _, false) => LETTERS[level],
    }
}

/// The legend of the shades.
fn legend(map: &HeatMap, most: u64, ink: Ink, indent: &str) -> String {
    let last = levels(ink) - 1;
    let mut text = format!("{indent}{}:", shown(&map.counted));
    let mut listed = 0;
    for shade in 0..=last {
        let count = match last {
            0 => most as f64,
            _ => (most as f64).powf(shade as f64 / last as f64),
        };
        let count = count.round() as u64;
        if level(count, most, ink) != Some(shade) || count <= listed {
            continue;
        }
        listed = count;
        let shade = painted(&[Some(shade)], 1, ink);
        text += &format!(" {shade} {}", thousands(&count.to_string()));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Bands;

    fn map(wide: usize) -> HeatMap {
        let bands = |title: &str, labels: Vec<String>| Bands {
            title: title.into(),
            labels,
        };
        let mut counts = vec![0; wide * 2];
        counts[0] = 1;
        counts[wide * 2 - 1] = 1_000;
        HeatMap {
            title: "latency over time".into(),
            x: bands("time", (0..wide).map(|i| format!("{i} s")).collect()),
            y: bands("latency", vec!["1 ms".into(), "10 ms".into()]),
            counted: "requests".into(),
            counts,
        }
    }

    #[test]
    fn characters_represent_amounts() {
        let drawn = heat_map(&map(6), Ink::PLAIN, 40);
        let expected = "\
latency over time
latency
10 ms |               @@@|
 1 ms |...               |
       0 s   2 s   4 s
       time
       requests: . 1 : 2 - 6 = 13 + 32 * 75 # 178 % 422 @ 1,000
";
        assert_eq!(drawn, expected);
    }

    #[test]
    fn bands_without_space_are_merged() {
        let drawn = heat_map(&map(500), Ink::PLAIN, 60);
        let rows: Vec<&str> = drawn.lines().filter(|l| l.contains('|')).collect();
        assert!(rows.iter().all(|l| l.len() <= 60), "{drawn}");
        assert!(
            rows[0].ends_with("@|") && rows[1].contains("|. "),
            "{drawn}"
        );
    }

    #[test]
    fn colours_are_closed() {
        let ink = Ink {
            color: true,
            unicode: true,
        };
        let drawn = heat_map(&map(6), ink, 40);
        assert!(drawn.contains("\x1b[38;5;227m███\x1b[0m|"), "{drawn:?}");
        for line in drawn.lines() {
            assert!(
                line.rfind("\x1b[38")
                    .is_none_or(|on| line.rfind("\x1b[0m") > Some(on))
            );
        }
        let shades = Ink {
            color: false,
            ..ink
        };
        assert!(heat_map(&map(6), shades, 40).contains("███|"));
    }
}
