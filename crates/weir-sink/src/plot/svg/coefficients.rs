//! Coefficients of correlation: a matrix of shades, and a graph with the series on a circle.

use std::f64::consts::TAU;

use super::Picture;
use super::canvas::{Anchor, Canvas, number, text_width};
use crate::plot::{CoefficientPair, CoefficientPlot};

/// The shades of each sign: classes `p1` to `p5` and `n1` to `n5`.
const SHADES: f64 = 5.0;

const CELL: f64 = 22.0;
const FONT: f64 = 12.0;
const MARGIN: f64 = 14.0;
const TITLE: f64 = 34.0;

/// Longer names are cut at their beginning, since names of disks differ at their end.
const NAME_CHARACTERS: usize = 44;

/// A matrix with the coefficient of each pair; an empty cell is a pair without one.
pub fn coefficient_matrix(plot: &CoefficientPlot) -> Picture {
    let names: Vec<String> = plot.names.iter().map(|name| short(name)).collect();
    let left = MARGIN + widest(&names) + 8.0;
    let side = CELL * names.len() as f64;
    let mut canvas = Canvas::default();
    title(&mut canvas, &plot.title);
    for (row, name) in names.iter().enumerate() {
        let y = TITLE + CELL * row as f64;
        canvas.text("", (left - 6.0, y + 15.0), Anchor::End, 0.0, name);
        let x = left + CELL * row as f64;
        let at = (x + 15.0, TITLE + side + 8.0);
        canvas.text("", at, Anchor::End, -90.0, name);
        canvas.rect(
            "same",
            [x, y, CELL - 1.0, CELL - 1.0],
            Some(&plot.names[row]),
        );
    }
    for pair in &plot.pairs {
        for (row, column) in [(pair.from, pair.to), (pair.to, pair.from)] {
            let (x, y) = (left + CELL * column as f64, TITLE + CELL * row as f64);
            let area = [x, y, CELL - 1.0, CELL - 1.0];
            canvas.rect(&shade(pair.coefficient), area, Some(&pair.tooltip));
        }
    }
    let bottom = TITLE + side + widest(&names) + 20.0;
    let right = legend(&mut canvas, left, bottom);
    Picture {
        title: plot.title.clone(),
        width: (left + side).max(right) + MARGIN,
        height: bottom + 24.0,
        elements: canvas.into_text(),
    }
}

/// The series on a circle, and a line for each pair, with an arrow if it is directed.
pub fn coefficient_graph(plot: &CoefficientPlot) -> Picture {
    let names: Vec<String> = plot.names.iter().map(|name| short(name)).collect();
    let radius = (names.len() as f64 * 26.0 / TAU).max(90.0);
    let beside = widest(&names) + 20.0;
    let centre = (MARGIN + beside + radius, TITLE + 20.0 + radius);
    let place = |series: usize, radius: f64| {
        let angle = TAU * (series as f64 / names.len().max(1) as f64 - 0.25);
        (
            centre.0 + radius * angle.cos(),
            centre.1 + radius * angle.sin(),
        )
    };
    let mut canvas = Canvas::default();
    title(&mut canvas, &plot.title);
    for pair in &plot.pairs {
        let (from, to) = (place(pair.from, radius - 6.0), place(pair.to, radius - 6.0));
        edge(&mut canvas, pair, from, to);
    }
    for (series, name) in names.iter().enumerate() {
        let (x, y) = place(series, radius);
        canvas.rect(
            "node",
            [x - 4.0, y - 4.0, 8.0, 8.0],
            Some(&plot.names[series]),
        );
        let (x, y) = place(series, radius + 10.0);
        let anchor = match x - centre.0 {
            beside if beside > 1.0 => Anchor::Start,
            beside if beside < -1.0 => Anchor::End,
            _ => Anchor::Middle,
        };
        canvas.text("", (x, y + 4.0), anchor, 0.0, name);
    }
    let bottom = centre.1 + radius + 30.0;
    let right = legend(&mut canvas, MARGIN, bottom);
    Picture {
        title: plot.title.clone(),
        width: (centre.0 + radius + beside).max(right) + MARGIN,
        height: bottom + 24.0,
        elements: canvas.into_text(),
    }
}

/// A line between two points; with an arrow at its end.
fn edge(canvas: &mut Canvas, pair: &CoefficientPair, from: (f64, f64), to: (f64, f64)) {
    let mut path = format!(
        "M{} {}L{} {}",
        number(from.0),
        number(from.1),
        number(to.0),
        number(to.1)
    );
    let length = (to.0 - from.0).hypot(to.1 - from.1);
    if pair.directed && length > 0.0 {
        let (dx, dy) = ((to.0 - from.0) / length, (to.1 - from.1) / length);
        for side in [-4.0, 4.0] {
            let x = to.0 - 10.0 * dx - side * dy;
            let y = to.1 - 10.0 * dy + side * dx;
            path += &format!(
                "M{} {}L{} {}",
                number(to.0),
                number(to.1),
                number(x),
                number(y)
            );
        }
    }
    canvas.titled_path(
        &format!("edge {}", shade(pair.coefficient)),
        &path,
        &pair.tooltip,
    );
}

fn title(canvas: &mut Canvas, text: &str) {
    canvas.text("title", (MARGIN, 20.0), Anchor::Start, 0.0, text);
}

/// The shades with their coefficients; returns where it ends.
fn legend(canvas: &mut Canvas, left: f64, y: f64) -> f64 {
    let mut x = left;
    let coefficients = [-0.9, -0.5, -0.1, 0.1, 0.5, 0.9];
    let names = ["-1", "-0.5", "", "", "0.5", "1"];
    for (coefficient, name) in coefficients.into_iter().zip(names) {
        canvas.rect(&shade(coefficient), [x, y, CELL, 12.0], None);
        let at = (x + CELL / 2.0, y + 23.0);
        canvas.text("small", at, Anchor::Middle, 0.0, name);
        x += CELL;
    }
    x
}

/// The class of a coefficient.
fn shade(coefficient: f64) -> String {
    let sign = if coefficient < 0.0 { 'n' } else { 'p' };
    let shade = (coefficient.abs() * SHADES).ceil().clamp(1.0, SHADES);
    format!("{sign}{shade}")
}

fn widest(names: &[String]) -> f64 {
    names
        .iter()
        .map(|name| text_width(name, FONT))
        .fold(0.0, f64::max)
}

fn short(name: &str) -> String {
    let length = name.chars().count();
    match length > NAME_CHARACTERS {
        true => format!(
            "…{}",
            name.chars()
                .skip(length - NAME_CHARACTERS + 1)
                .collect::<String>()
        ),
        false => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> CoefficientPlot {
        let pair = |from, to, coefficient, directed| CoefficientPair {
            from,
            to,
            coefficient,
            directed,
            tooltip: format!("r = {coefficient} <&>"),
        };
        CoefficientPlot {
            title: "disks".into(),
            names: ["a", "b", "<c>"].map(String::from).to_vec(),
            pairs: vec![pair(0, 1, 0.95, true), pair(1, 2, -0.85, false)],
        }
    }

    #[test]
    fn a_matrix_has_each_pair_twice_and_escapes_names() {
        let svg = coefficient_matrix(&plot()).standalone();
        let of_pair = "<title>r = 0.95 &lt;&amp;&gt;</title>";
        assert_eq!(svg.matches(of_pair).count(), 2, "{svg}");
        assert_eq!(svg.matches("class=\"same\"").count(), 3);
        assert!(svg.contains("&lt;c&gt;") && !svg.contains("<c>"));
        assert!(svg.contains("class=\"n5\""));
    }

    #[test]
    fn a_graph_has_an_arrow_only_where_one_leads() {
        let svg = coefficient_graph(&plot()).standalone();
        let edges: Vec<&str> = svg
            .lines()
            .filter(|line| line.contains("\"edge "))
            .collect();
        assert_eq!(edges.len(), 2);
        assert_eq!(edges[0].matches('M').count(), 3, "{}", edges[0]);
        assert_eq!(edges[1].matches('M').count(), 1, "{}", edges[1]);
    }
}
