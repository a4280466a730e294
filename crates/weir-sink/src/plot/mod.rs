//! Plots: data in, text out, as SVG or for a terminal.
//!
//! | data | shows |
//! | --- | --- |
//! | [`Histogram`] | bars over labelled bins, several series side by side |
//! | [`HeatMap`] | counts by two measures |
//! | [`Lines`] | values against a measure: miss-ratio curve, latency by load |
//! | [`Points`] | a cloud: address over time |
//!
//! ```
//! use weir_sink::plot::{Histogram, Ink, Layout, svg, terminal};
//! use weir_workload::{Distribution, Metric};
//!
//! let mut lengths = Distribution::new(Metric::Length);
//! lengths.add(4096);
//! let histogram = Histogram::new("I/O length", &[("reads", &lengths)], Layout::Limits);
//! let picture = svg::histogram(&histogram).standalone();
//! assert!(picture.starts_with("<svg"));
//! let bars = terminal::histogram(&histogram, Ink::PLAIN, 60);
//! assert!(bars.contains("4 KiB : 1"));
//! ```

mod heat_map;
mod histogram;
mod ink;
mod lines;
mod quantity;
mod scale;
pub mod svg;
pub mod terminal;

pub use heat_map::{Bands, HeatMap};
pub use histogram::{Bin, Histogram, Layout, Series, phrase};
pub use ink::Ink;
pub use lines::{Line, Lines, Mark, Measured, Points};
pub use quantity::{Quantity, thousands};
