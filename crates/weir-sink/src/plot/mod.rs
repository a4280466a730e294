//! Plots: data in, text out, as SVG or for a terminal.
//!
//! | data | shows |
//! | --- | --- |
//! | [`CoefficientPlot`] | correlated series, as a matrix and as a graph |
//! | [`HistogramPlot`] | bars over labelled bins, several series side by side |
//! | [`HeatMap`] | counts by two measures |
//! | [`Lines`] | values against a measure: miss-ratio curve, latency by load |
//! | [`Points`] | a cloud: address over time |
//! | [`TimelinePlot`] | requests as bars over time |
//!
//! ```
//! use weir_sink::plot::{HistogramPlot, Ink, BinLayout, svg, terminal};
//! use weir_workload::{Distribution, Metric};
//!
//! let mut lengths = Distribution::new(Metric::Length);
//! lengths.add(4096);
//! let histogram = HistogramPlot::new("I/O length", &[("reads", &lengths)], BinLayout::Limits);
//! let picture = svg::histogram(&histogram).standalone();
//! assert!(picture.starts_with("<svg"));
//! let bars = terminal::histogram(&histogram, Ink::PLAIN, 60);
//! assert!(bars.contains("4 KiB : 1"));
//! ```

mod coefficients;
mod heat_map;
mod histogram;
mod ink;
mod lines;
mod quantity;
mod scale;
pub mod svg;
pub mod terminal;
mod timeline;

pub use coefficients::{CoefficientPair, CoefficientPlot};
pub use heat_map::{Bands, HeatMap};
pub use histogram::{Bin, BinLayout, HistogramPlot, PlotSeries, phrase};
pub use ink::Ink;
pub use lines::{Lines, Mark, PlotAxis, PlotLine, Points};
pub use quantity::{Quantity, thousands};
pub use timeline::{TimelineBar, TimelinePlot};
