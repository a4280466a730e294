//! [`Lines`] and [`Points`]: values of one measure against another.

use super::quantity::Quantity;

/// The description of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct PlotAxis {
    /// The name, without the unit.
    pub title: String,
    /// The unit.
    pub quantity: Quantity,
    /// Logarithmic scale; values up to 0 are omitted then.
    pub log: bool,
}

/// One or more lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Its title.
    pub title: String,
    /// The horizontal axis.
    pub x: PlotAxis,
    /// The vertical axis.
    pub y: PlotAxis,
    /// The lines.
    pub lines: Vec<PlotLine>,
    /// Labelled positions on the horizontal axis.
    pub marks: Vec<Mark>,
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct PlotLine {
    /// Its name in the legend.
    pub name: String,
    /// Points by ascending x; the line has a gap where y is not a number.
    pub points: Vec<(f64, f64)>,
    /// A value holds until the next one.
    pub steps: bool,
}

/// A labelled position on the horizontal axis: the recommended cache size.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The position.
    pub x: f64,
    /// The label.
    pub text: String,
}

/// A cloud of points: address over time, reads and writes apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Points {
    /// Its title.
    pub title: String,
    /// The horizontal axis.
    pub x: PlotAxis,
    /// The vertical axis.
    pub y: PlotAxis,
    /// Each with its name in the legend.
    pub clouds: Vec<(String, Vec<(f64, f64)>)>,
}

impl PlotAxis {
    /// A linear axis.
    pub fn new(title: &str, quantity: Quantity) -> PlotAxis {
        PlotAxis {
            title: title.to_owned(),
            quantity,
            log: false,
        }
    }

    /// A logarithmic axis.
    pub fn log(title: &str, quantity: Quantity) -> PlotAxis {
        PlotAxis {
            log: true,
            ..PlotAxis::new(title, quantity)
        }
    }
}
