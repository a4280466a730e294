//! Lines and steps over a measure.

use super::Picture;
use super::canvas::{Anchor, number, text_width};
use super::frame::{Frame, TICKS_Y, series_class};
use crate::plot::Lines;
use crate::plot::scale::Scale;

/// Up to this many points per line are marked, with a tooltip.
const MARKED_MAX: usize = 40;

/// Draws lines.
pub fn lines(plot: &Lines) -> Picture {
    let points = || plot.lines.iter().flat_map(|l| l.points.iter());
    let marks = plot.marks.iter().map(|m| m.x);
    let x = Scale::new(&plot.x, points().map(|p| p.0).chain(marks), true);
    let y = Scale::new(&plot.y, points().map(|p| p.1), false).rounded_up(TICKS_Y);
    let legend: Vec<(String, String)> = match plot.lines.len() {
        0 | 1 => Vec::new(),
        _ => {
            let each = plot.lines.iter().enumerate();
            each.map(|(i, l)| (series_class(i), l.name.clone()))
                .collect()
        }
    };
    let (side_x, side_y) = ((&*plot.x.title, &x), (&*plot.y.title, &y));
    let mut frame = Frame::of_numbers(&plot.title, side_x, side_y, &legend);
    for (i, line) in plot.lines.iter().enumerate() {
        let mut path = String::new();
        let mut last_y = None;
        for &(px, py) in &line.points {
            let (Some(at_x), Some(at_y)) = (x.place(px), y.place(py)) else {
                last_y = None;
                continue;
            };
            let (at_x, at_y) = (number(frame.x(at_x)), number(frame.y(at_y)));
            path += &match &last_y {
                // A point without neighbours is drawn as a dot.
                None => format!("M{at_x} {at_y}h.01"),
                Some(_) if line.steps => format!("H{at_x}V{at_y}"),
                Some(_) => format!("L{at_x} {at_y}"),
            };
            last_y = Some(at_y);
        }
        let class = series_class(i);
        frame.canvas.path(&format!("line {class}"), &path);
        if line.points.len() <= MARKED_MAX {
            marked(&mut frame, plot, i, (&x, &y));
        }
    }
    for mark in &plot.marks {
        let Some(place) = x.place(mark.x) else {
            continue;
        };
        let at = frame.x(place);
        let (top, bottom) = (frame.top, frame.bottom);
        frame.canvas.line("mark", (at, top), (at, bottom));
        // On the side of the line with more space.
        let (anchor, dx) = match at + 8.0 + text_width(&mark.text, 12.0) > frame.right {
            true => (Anchor::End, -6.0),
            false => (Anchor::Start, 6.0),
        };
        let place = (at + dx, top + 12.0);
        frame.canvas.text("text", place, anchor, 0.0, &mark.text);
    }
    frame.finish()
}

/// A small square at each point of a line.
fn marked(frame: &mut Frame, plot: &Lines, i: usize, (x, y): (&Scale, &Scale)) {
    let line = &plot.lines[i];
    for &(px, py) in &line.points {
        let (Some(at_x), Some(at_y)) = (x.place(px), y.place(py)) else {
            continue;
        };
        let tooltip = format!("{}: {}, {}", line.name, x.label(px), y.label(py));
        let area = [frame.x(at_x) - 2.5, frame.y(at_y) - 2.5, 5.0, 5.0];
        let class = format!("bar {}", series_class(i));
        frame.canvas.rect(&class, area, Some(&tooltip));
    }
}
