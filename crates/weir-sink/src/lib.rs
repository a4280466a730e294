//! Sinks: a sink receives the rows or deltas of one query and displays or stores them.
//!
//! | module | gives |
//! | --- | --- |
//! | [`table`] | aligned columns: the relation as it is, or a stream's rows as they come |
//! | [`json`] | one JSON object a line |
//! | [`csv`] | comma-separated values with a header |
//! | [`delta`] | one readable line a delta, `[instant]:+:values` |
//! | [`stream`] | the output format of the Stanford STREAM prototype, exactly |
//! | [`parquet`] | a Parquet file |
//! | [`arrow_stream`] | an Arrow IPC stream |
//! | [`arrow`] | record batches, for Parquet files and clients of a monitor |
//! | [`iostat`] | the reports of sysstat's iostat |
//! | [`diskstats_tree`] | a directory for `iostat -f` |
//! | [`vscsistats`] | a disk's histograms in the CSV of VMware's vscsiStats |
//! | [`metrics`] | metrics for Prometheus, over HTTP |
//! | [`report`] | the report of `weir characterise` |
//! | [`plot`] | histograms, heat maps and lines, as SVG or for a terminal |
//! | [`last`] | any of these, of what a relation holds at the end |
//! | [`view`] | the current rows of a relation: snapshot and changes |
//! | [`subscribers`] | any number of readers of a view, slow ones too |
//!
//! A sink gets the description of its columns ([`ResultSchema`]) before the first row. It does not
//! depend on taps or queries.

pub mod answer;
pub mod arrow;
pub mod arrow_stream;
pub mod csv;
pub mod delta;
pub mod diskstats_tree;
pub mod error;
pub mod iostat;
pub mod json;
pub mod last;
mod line;
pub mod metrics;
pub mod number;
pub mod parquet;
pub mod plot;
pub mod report;
pub mod stream;
pub mod subscribers;
pub mod table;
pub mod target;
pub mod text;

pub mod time;
pub mod view;
pub mod vscsistats;

pub use answer::{InstantUnit, ResultSchema, SortKey};
pub use error::SinkError;
pub use subscribers::{SubscriberLimits, Subscribers, Update};
pub use target::{Target, TerminalTarget};
pub use view::RelationView;

use weir_model::Batch;

/// The destination of the rows or deltas of one query.
pub trait Sink: Send {
    /// Writes rows (of a stream) or deltas (of a relation), in timestamp order.
    ///
    /// # Errors
    /// If the target fails; [`SinkError::Closed`] if the reader has closed it.
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError>;

    /// Flushes or redraws the output; called between instants, never within one.
    ///
    /// # Errors
    /// As [`Sink::write`].
    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// All rows up to an instant were written. Only runs that are asked to report it call this,
    /// with instants that never decrease.
    ///
    /// # Errors
    /// As [`Sink::write`].
    fn advance(&mut self, watermark: &Watermark) -> Result<(), SinkError> {
        let _ = watermark;
        Ok(())
    }

    /// The query failed: no more rows are written.
    ///
    /// # Errors
    /// As [`Sink::write`].
    fn fail(&mut self, error: &str) -> Result<(), SinkError> {
        let _ = error;
        Ok(())
    }

    /// Marks all following output as the result of a slide in which the input ended. A format
    /// without such a mark ignores it.
    fn incomplete(&mut self, slide: Incomplete) {
        let _ = slide;
    }

    /// Completes the output; nothing is written after this.
    ///
    /// # Errors
    /// As [`Sink::write`].
    fn finish(&mut self) -> Result<(), SinkError> {
        self.flush()
    }

    /// A remark for the reader of the output: rows that had to be omitted.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }
}

/// How far the results of a run are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark {
    /// The first instant of the inputs.
    pub begin: i64,
    /// All results up to this instant were written.
    pub at: i64,
    /// Requests that live taps have missed up to it.
    pub missed: i64,
}

/// A slide of a window in which the input ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incomplete {
    /// How much of the slide the input covers, in the unit of the answer's instants.
    pub covers: i64,
    /// The length of the slide.
    pub slide: i64,
}

/// A kind of sink, for help, completion and `--format`.
pub struct SinkFormat {
    /// Its name in `--format`.
    pub name: &'static str,
    /// Its description in a sentence.
    pub doc: &'static str,
    /// Opens a sink for an answer.
    pub open: OpenSink,
    /// Opens a sink that continues existing output; `None` if the format cannot.
    pub resume: Option<OpenSink>,
}

/// Opens a sink for an answer.
pub type OpenSink = fn(ResultSchema, Target) -> Result<Box<dyn Sink>, SinkError>;

/// Every sink of `--format`, in the order of the help.
pub static SINKS: &[&SinkFormat] = &[
    &table::FORMAT,
    &delta::FORMAT,
    &json::FORMAT,
    &csv::FORMAT,
    &csv::SAFE_FORMAT,
    &arrow_stream::FORMAT,
    &parquet::FORMAT,
    &stream::FORMAT,
];

/// The sink called `name`.
pub fn format(name: &str) -> Option<&'static SinkFormat> {
    SINKS.iter().copied().find(|f| f.name == name)
}
