//! [`Lines`] and [`Points`]: values of one measure against another.

use super::quantity::Quantity;

/// What an axis measures.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// In words, without the unit.
    pub title: String,
    /// In what.
    pub quantity: Quantity,
    /// Equal distances are equal ratios; values up to 0 are left out then.
    pub log: bool,
}

/// One or more lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// What it shows.
    pub title: String,
    /// From left to right.
    pub x: Measured,
    /// From the bottom up.
    pub y: Measured,
    /// The lines.
    pub lines: Vec<Line>,
    /// Places on the horizontal axis that are told.
    pub marks: Vec<Mark>,
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// By ascending x; the line has a gap where y is no number.
    pub points: Vec<(f64, f64)>,
    /// A value holds until the next one.
    pub steps: bool,
}

/// A place on the horizontal axis: the cache size that pays.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Where.
    pub x: f64,
    /// What it is.
    pub text: String,
}

/// A cloud of points: address over time, reads and writes apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Points {
    /// What it shows.
    pub title: String,
    /// From left to right.
    pub x: Measured,
    /// From the bottom up.
    pub y: Measured,
    /// Each with its name in the legend.
    pub clouds: Vec<(String, Vec<(f64, f64)>)>,
}

impl Measured {
    /// In equal steps.
    pub fn new(title: &str, quantity: Quantity) -> Measured {
        Measured {
            title: title.to_owned(),
            quantity,
            log: false,
        }
    }

    /// In equal ratios.
    pub fn log(title: &str, quantity: Quantity) -> Measured {
        Measured {
            log: true,
            ..Measured::new(title, quantity)
        }
    }
}
