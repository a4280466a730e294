//! Requests as bars over time: the wait in a light shade, the service in a dark one.

use weir_model::Unit;

use super::Picture;
use super::canvas::{Anchor, Canvas};
use crate::number::scaled;
use crate::plot::TimelinePlot;

/// The width of the bars, of their labels, and the margins.
const BARS: f64 = 480.0;
const LABELS: f64 = 360.0;
const MARGIN: f64 = 12.0;

/// The height of the title, of a bar with its distance to the next one, and of a bar.
const TITLE: f64 = 32.0;
const LINE: f64 = 18.0;
const BAR: f64 = 12.0;

/// The marks of the axis.
const MARKS: u32 = 4;

/// Draws a timeline.
pub fn timeline(plot: &TimelinePlot) -> Picture {
    let mut canvas = Canvas::default();
    let bottom = TITLE + LINE * plot.bars.len() as f64;
    canvas.text("title", (MARGIN, 20.0), Anchor::Start, 0.0, &plot.title);
    let length = (plot.end_ns - plot.begin_ns) as f64;
    for mark in 0..=MARKS {
        let share = f64::from(mark) / f64::from(MARKS);
        let x = MARGIN + BARS * share;
        canvas.line("grid", (x, TITLE), (x, bottom));
        let at = scaled(length * share, Unit::Nanoseconds).unwrap_or_default();
        canvas.text("small", (x, bottom + 14.0), Anchor::Middle, 0.0, &at);
    }
    for (row, bar) in plot.bars.iter().enumerate() {
        let y = TITLE + LINE * row as f64;
        let [inserted, issued, finished] = plot.places(bar).map(|place| MARGIN + BARS * place);
        let rect = |x: f64, end: f64| [x, y + (LINE - BAR) / 2.0, (end - x).max(1.0), BAR];
        if issued > inserted {
            canvas.rect("h3", rect(inserted, issued), Some("wait"));
        }
        canvas.rect("h7", rect(issued, finished), Some("service"));
        let at = (MARGIN + BARS + 8.0, y + LINE - 5.0);
        canvas.text("small", at, Anchor::Start, 0.0, &bar.label);
    }
    Picture {
        title: plot.title.clone(),
        width: BARS + LABELS + 2.0 * MARGIN,
        height: bottom + 28.0,
        elements: canvas.into_text(),
    }
}
