//! Sinks: where answers go. A sink takes the rows or deltas of one query and shows or stores them.
//!
//! | module | gives |
//! | --- | --- |
//! | [`table`] | aligned columns: the relation as it is, or a stream's rows as they come |
//! | [`json`] | one JSON object a line |
//! | [`csv`] | comma-separated values with a header |
//! | [`delta`] | one readable line a delta, `[instant]:+:values` |
//! | [`stream`] | the output format of the Stanford STREAM prototype, exactly |
//! | [`parquet`] | a Parquet file |
//! | [`arrow`] | record batches, for Parquet files and whoever watches a query of a monitor |
//! | [`iostat`] | the reports of sysstat's iostat |
//! | [`diskstats_tree`] | a directory for `iostat -f` |
//! | [`vscsistats`] | a disk's histograms in the CSV of VMware's vscsiStats |
//! | [`metrics`] | metrics for Prometheus, over HTTP |
//! | [`report`] | what `weir characterise` says |
//! | [`plot`] | histograms, heat maps and lines, as SVG or for a terminal |
//! | [`last`] | any of these, of what a relation holds at the end |
//!
//! A sink knows its answer's columns ([`Answer`]) before the first row comes. It knows nothing of
//! taps and queries.

pub mod answer;
pub mod arrow;
pub mod csv;
pub mod delta;
pub mod diskstats_tree;
pub mod error;
pub mod iostat;
pub mod json;
pub mod last;
pub mod metrics;
pub mod number;
pub mod parquet;
pub mod plot;
pub mod relation;
pub mod report;
pub mod stream;
pub mod table;
pub mod target;
pub mod text;

pub mod time;
pub mod vscsistats;

pub use answer::{Answer, Clock, SortKey};
pub use error::SinkError;
pub use relation::Relation;
pub use target::{Screen, Target};

use weir_model::Batch;

/// Where the rows or deltas of one query go.
pub trait Sink: Send {
    /// Takes rows (of a stream) or deltas (of a relation), in time order.
    ///
    /// # Errors
    /// When the target fails; [`SinkError::Closed`] when nobody reads any more.
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError>;

    /// Brings to the eye what was written; called between instants, never within one.
    ///
    /// # Errors
    /// As [`Sink::write`].
    fn flush(&mut self) -> Result<(), SinkError>;

    /// Marks all that is written from here on: it is the result of a slide that the input ended in.
    /// A format that has no place for the mark leaves it out.
    fn incomplete(&mut self, slide: Incomplete) {
        let _ = slide;
    }

    /// Completes the output; nothing is written after this.
    ///
    /// # Errors
    /// As [`Sink::write`].
    fn finish(&mut self) -> Result<(), SinkError>;

    /// What a reader of the output should know about it: rows that had to be left out.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A slide of a window in which the input ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incomplete {
    /// How much of the slide the input covers, in the unit of the answer's instants.
    pub covers: i64,
    /// How long the slide is.
    pub slide: i64,
}

/// A kind of sink, for help, completion and `--format`.
pub struct Format {
    /// What `--format` calls it.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub doc: &'static str,
    /// Opens one for an answer.
    pub open: Open,
    /// Opens one that goes on where the output of another one ends; `None` where that cannot be.
    pub resume: Option<Open>,
}

/// Opens a sink for an answer.
pub type Open = fn(Answer, Target) -> Result<Box<dyn Sink>, SinkError>;

/// Every sink that `--format` knows, in the order the help lists them.
pub static SINKS: &[&Format] = &[
    &table::FORMAT,
    &delta::FORMAT,
    &json::FORMAT,
    &csv::FORMAT,
    &csv::SAFE_FORMAT,
    &parquet::FORMAT,
    &stream::FORMAT,
];

/// The sink called `name`.
pub fn format(name: &str) -> Option<&'static Format> {
    SINKS.iter().copied().find(|f| f.name == name)
}
