//! A scatter plot, each series in its own colour, as figures 8 and 9 of Ouarnoughi 2014 show the
//! addresses of reads and writes over time.

use std::collections::BTreeSet;

use super::Picture;
use super::canvas::number;
use super::frame::{Frame, series_class};
use crate::plot::Points;
use crate::plot::scale::Scale;

/// The length of a point's side.
const POINT: f64 = 2.0;

/// Draws points. Coinciding points of one series are drawn once, so that the size of the picture is
/// bounded.
pub fn points(plot: &Points) -> Picture {
    let all = || plot.clouds.iter().flat_map(|(_, points)| points.iter());
    let x = Scale::new(&plot.x, all().map(|p| p.0), true);
    let y = Scale::new(&plot.y, all().map(|p| p.1), true);
    let named = plot.clouds.iter().enumerate();
    let legend: Vec<(String, String)> = named
        .map(|(i, (name, _))| (series_class(i), name.clone()))
        .collect();
    let (side_x, side_y) = ((&*plot.x.title, &x), (&*plot.y.title, &y));
    let mut frame = Frame::of_numbers(&plot.title, side_x, side_y, &legend);
    for (i, (_, points)) in plot.clouds.iter().enumerate() {
        let mut places = BTreeSet::new();
        for &(px, py) in points {
            if let (Some(at_x), Some(at_y)) = (x.place(px), y.place(py)) {
                let place = |v: f64| (v / POINT * 2.0).round() as i64;
                places.insert((place(frame.x(at_x)), place(frame.y(at_y))));
            }
        }
        let mut path = String::new();
        for (at_x, at_y) in places {
            let place = |v: i64| number((v as f64 / 2.0 - 0.5) * POINT);
            path += &format!("M{} {}h{POINT}v{POINT}h-{POINT}z", place(at_x), place(at_y));
        }
        frame
            .canvas
            .path(&format!("cloud {}", series_class(i)), &path);
    }
    frame.finish()
}
