//! [`Frame`]: the surroundings of a plot: title, legend, axes with round or named marks.

use super::Picture;
use super::canvas::{Anchor, Canvas, text_width};
use crate::plot::scale::Scale;

/// A picture's size.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 340.0;

/// The font size of marks and legends.
const SMALL: f64 = 11.0;

/// The smallest distance of named marks.
const NAMES_APART: f64 = 13.0;

/// The longest title of a legend or mark that is drawn.
const NAME_MAX: usize = 48;

/// The area of a plot in its picture, and what is drawn around it.
pub struct Frame {
    title: String,
    /// The plot: left, top, right, bottom.
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
    pub canvas: Canvas,
}

/// The marks of an axis.
pub enum Marks<'a> {
    /// Round values.
    Round(&'a Scale),
    /// Marks of parts of equal size, each centred in its part.
    Names(&'a [String]),
}

/// An axis and its title.
pub struct Side<'a> {
    pub title: &'a str,
    pub marks: Marks<'a>,
}

/// The largest number of round marks of an axis.
pub const TICKS_X: usize = 8;
pub const TICKS_Y: usize = 6;

impl Frame {
    /// Draws the surroundings of a plot with two numeric axes.
    pub fn of_numbers(
        title: &str,
        (x_title, x): (&str, &Scale),
        (y_title, y): (&str, &Scale),
        legend: &[(String, String)],
    ) -> Frame {
        let side = |title, scale| Side {
            title,
            marks: Marks::Round(scale),
        };
        Frame::new(title, &side(x_title, x), &side(y_title, y), legend)
    }

    /// Draws the surroundings. The legend has the name of each series in its colour class.
    pub fn new(title: &str, x: &Side, y: &Side, legend: &[(String, String)]) -> Frame {
        let names_y = labels(&y.marks, TICKS_Y);
        let widest = |names: &[(f64, String)]| {
            let widths = names.iter().map(|(_, name)| text_width(name, SMALL));
            widths.fold(0.0, f64::max)
        };
        let names_x = labels(&x.marks, TICKS_X);
        let (left, right) = (34.0 + widest(&names_y), WIDTH - 18.0);
        let lines = legend_lines(legend, right - left);
        let top = 38.0 + 18.0 * lines.len() as f64;
        let named = matches!(x.marks, Marks::Names(_));
        let below = match named {
            // The names are turned by 45 degrees.
            true => 14.0 + 0.71 * widest(&names_x),
            false => 18.0,
        };
        let mut frame = Frame {
            title: title.to_owned(),
            left,
            top,
            right,
            bottom: HEIGHT - below - 26.0,
            canvas: Canvas::default(),
        };
        let canvas = &mut frame.canvas;
        canvas.text("title", (left, 22.0), Anchor::Start, 0.0, &cut(title, 80));
        let mut line_y = 42.0;
        for line in lines {
            let mut line_x = left;
            for (class, name) in line {
                let swatch = [line_x, line_y - 9.0, 11.0, 11.0];
                canvas.rect(&format!("bar {class}"), swatch, None);
                canvas.text("small", (line_x + 16.0, line_y), Anchor::Start, 0.0, &name);
                line_x += 34.0 + text_width(&name, SMALL);
            }
            line_y += 18.0;
        }
        frame.marks_y(&names_y, matches!(y.marks, Marks::Round(_)));
        frame.marks_x(&names_x, named);
        let canvas = &mut frame.canvas;
        let middle = (left + right) / 2.0;
        canvas.text("text", (middle, HEIGHT - 8.0), Anchor::Middle, 0.0, x.title);
        let middle = (top + frame.bottom) / 2.0;
        canvas.text("text", (16.0, middle), Anchor::Middle, -90.0, y.title);
        frame
    }

    fn marks_y(&mut self, names: &[(f64, String)], grid: bool) {
        let least = match grid {
            true => 0.0,
            false => NAMES_APART,
        };
        let mut last = f64::INFINITY;
        for (place, name) in names {
            let y = self.y(*place);
            if last - y < least {
                continue;
            }
            last = y;
            if grid {
                self.canvas.line("grid", (self.left, y), (self.right, y));
            }
            self.canvas
                .text("small", (self.left - 6.0, y + 4.0), Anchor::End, 0.0, name);
        }
    }

    fn marks_x(&mut self, names: &[(f64, String)], turned: bool) {
        let mut end = f64::NEG_INFINITY;
        for (place, name) in names {
            let x = self.x(*place);
            let half = match turned {
                true => NAMES_APART / 2.0,
                false => text_width(name, SMALL) / 2.0 + 4.0,
            };
            if x - half < end {
                continue;
            }
            end = x + half;
            let below = self.bottom + 4.0;
            self.canvas.line("axis", (x, self.bottom), (x, below));
            match turned {
                true => {
                    let at = (x + 3.0, below + 9.0);
                    self.canvas.text("small", at, Anchor::End, -45.0, name);
                }
                false => {
                    // The last one ends with the picture.
                    let x = x.min(WIDTH - half);
                    let at = (x, below + 12.0);
                    self.canvas.text("small", at, Anchor::Middle, 0.0, name);
                }
            }
        }
    }

    /// The horizontal coordinate of a position from 0 to 1.
    pub fn x(&self, place: f64) -> f64 {
        self.left + place * (self.right - self.left)
    }

    /// The vertical one, from the bottom up.
    pub fn y(&self, place: f64) -> f64 {
        self.bottom - place * (self.bottom - self.top)
    }

    /// The picture, with the axes over what was drawn.
    pub fn finish(mut self) -> Picture {
        let (left, bottom) = (self.left, self.bottom);
        self.canvas.line("axis", (left, self.top), (left, bottom));
        self.canvas
            .line("axis", (left, bottom), (self.right, bottom));
        Picture {
            title: self.title,
            width: WIDTH,
            height: HEIGHT,
            elements: self.canvas.into_text(),
        }
    }
}

/// A truncated text, with a mark if something is missing.
fn cut(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// The position and text of each mark.
fn labels(marks: &Marks, most: usize) -> Vec<(f64, String)> {
    match marks {
        Marks::Round(scale) => scale
            .ticks(most)
            .into_iter()
            .filter_map(|v| Some((scale.place(v)?, scale.label(v))))
            .collect(),
        Marks::Names(names) => {
            let middle = |i: usize| (i as f64 + 0.5) / names.len() as f64;
            let each = names.iter().enumerate();
            each.map(|(i, name)| (middle(i), cut(name, NAME_MAX)))
                .collect()
        }
    }
}

/// The legend's entries, as many per line as fit.
fn legend_lines(legend: &[(String, String)], room: f64) -> Vec<Vec<(String, String)>> {
    let mut lines: Vec<Vec<(String, String)>> = Vec::new();
    let mut taken = f64::INFINITY;
    for (class, name) in legend {
        let name = cut(name, NAME_MAX);
        let wide = 34.0 + text_width(&name, SMALL);
        if taken + wide > room {
            lines.push(Vec::new());
            taken = 0.0;
        }
        taken += wide;
        let line = lines.last_mut().expect("a line was begun");
        line.push((class.clone(), name));
    }
    lines
}

/// The class of a series.
pub fn series_class(i: usize) -> String {
    format!("s{}", i % 4)
}
