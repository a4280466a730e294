//! Lines in characters: a grid of marks, one letter per line, with round values beside it.

use super::{cell, under};
use crate::plot::scale::Scale;
use crate::plot::{Ink, Lines};
use crate::text::{shown, width};

/// Lines of the grid.
const ROWS: usize = 12;

/// Marks of the lines, the first's first.
const MARKS: [char; 4] = ['*', 'o', '+', 'x'];
const DOTS: [char; 4] = ['•', 'o', '+', 'x'];

/// Draws lines.
pub fn lines(plot: &Lines, ink: Ink, columns: usize) -> String {
    let mut text = format!("{}\n", shown(&plot.title));
    let points = || plot.lines.iter().flat_map(|l| l.points.iter());
    if points().next().is_none() {
        return text + "  no values\n";
    }
    let x = Scale::new(&plot.x, points().map(|p| p.0), true);
    let y = Scale::new(&plot.y, points().map(|p| p.1), false).rounded_up(4);
    let ticks: Vec<(usize, String)> = y
        .ticks(4)
        .iter()
        .filter_map(|&v| Some((row(y.place(v)?), y.label(v))))
        .collect();
    let label = ticks.iter().map(|(_, l)| width(l)).max().unwrap_or(0);
    let wide = columns.saturating_sub(label + 3).max(8);
    let mut grid = vec![vec![' '; wide]; ROWS];
    let column = |place: f64| (place * (wide - 1) as f64).round() as usize;
    for mark in &plot.marks {
        if let Some(place) = x.place(mark.x) {
            let rule = if ink.unicode { '┊' } else { ':' };
            grid.iter_mut().for_each(|row| row[column(place)] = rule);
        }
    }
    for (i, line) in plot.lines.iter().enumerate() {
        let marks = if ink.unicode { DOTS } else { MARKS };
        let place = |at: usize| {
            let value = x.value(at as f64 / (wide - 1) as f64);
            y.place(between(&line.points, value, line.steps)?)
        };
        for (at, place) in (0..wide).filter_map(|at| Some((at, place(at)?))) {
            grid[row(place)][at] = marks[i % marks.len()];
        }
    }
    text += &format!("{}{}\n", key(plot, ink), shown(&plot.y.title));
    for (r, line) in grid.iter().enumerate() {
        let tick = ticks.iter().find(|(at, _)| *at == r);
        let tick = tick.map_or("", |(_, label)| label);
        let line: String = line.iter().collect();
        text += &format!("{} |{}\n", cell(tick, label, true), line.trim_end());
    }
    let most = (wide / 12).max(2);
    let labels: Vec<(usize, String)> = x
        .ticks(most)
        .iter()
        .filter_map(|&v| Some((column(x.place(v)?), x.label(v))))
        .collect();
    let indent = " ".repeat(label + 2);
    text += &format!("{indent}{}\n", under(&labels, wide));
    text += &format!("{indent}{}\n", shown(&plot.x.title));
    for mark in &plot.marks {
        text += &format!("{indent}at {}: {}\n", x.label(mark.x), shown(&mark.text));
    }
    text
}

/// The legend of the marks, if there are several lines.
fn key(plot: &Lines, ink: Ink) -> String {
    if plot.lines.len() < 2 {
        return String::new();
    }
    let marks = if ink.unicode { DOTS } else { MARKS };
    let each = plot.lines.iter().enumerate();
    let each = each.map(|(i, line)| format!("{} {}", marks[i % marks.len()], shown(&line.name)));
    each.collect::<Vec<_>>().join("  ") + "   "
}

fn row(place: f64) -> usize {
    ROWS - 1 - ((place * (ROWS - 1) as f64).round() as usize).min(ROWS - 1)
}

/// The line's value at `x`, between its points; `None` before the first and after the last.
fn between(points: &[(f64, f64)], x: f64, steps: bool) -> Option<f64> {
    let after = points.partition_point(|p| p.0 <= x * (1.0 + 1e-12));
    let before = *points.get(after.checked_sub(1)?)?;
    match points.get(after) {
        None => (x <= before.0 * (1.0 + 1e-9)).then_some(before.1),
        Some(_) if steps => Some(before.1),
        Some(next) => {
            let part = (x - before.0) / (next.0 - before.0);
            Some(before.1 + (next.1 - before.1) * part)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Mark, PlotAxis, PlotLine, Quantity};

    #[test]
    fn a_curve_goes_through_its_points() {
        let curve = Lines {
            title: "miss ratio".into(),
            x: PlotAxis::log("cache size", Quantity::Bytes),
            y: PlotAxis::new("misses", Quantity::Share),
            lines: vec![PlotLine {
                name: "LRU".into(),
                points: vec![(1048576.0, 1.0), (4194304.0, 0.5), (16777216.0, 0.0)],
                steps: true,
            }],
            marks: vec![Mark {
                x: 4194304.0,
                text: "pays".into(),
            }],
        };
        let expected = "\
miss ratio
misses
100 % |*************:
      |             :
      |             :
      |             :
      |             :
 50 % |             *************
      |             :
      |             :
      |             :
      |             :
      |             :
  0 % |             :            *
       1 MiB               8 MiB
       cache size
       at 4 MiB: pays
";
        let drawn = lines(&curve, Ink::PLAIN, 35);
        assert_eq!(drawn, expected, "{drawn}");
    }
}
