//! Taps: sources of I/O events, live by eBPF and from trace files.
//!
//! A tap is told what the queries need (a [`weir_model::Demand`] per stream) and then says what it
//! saw, in time order. Taps know nothing of queries or sinks. The only `unsafe` code and the only C
//! of the project live here.

use std::time::Duration;

use weir_model::{Batch, Folded, Nanos, Symbol};

pub mod ebpf;
pub mod error;
pub mod format;
pub mod inventory;
pub mod live;
pub mod qmp;
mod shared;
pub mod tapdisk;
pub mod vdisk;

pub use ebpf::hist;
pub use ebpf::monotonic_ns;
pub use error::TapError;

/// The streams a tap can be asked for, beside those of the catalog: every row of `IOstream`
/// (requests and responses), in the schema of `IO`, so that responses carry their times. It is what
/// a recording holds.
pub const RECORDING: &str = "recording";

/// What a tap says next.
#[derive(Debug)]
pub enum Said {
    /// Rows of the stream of demand number `demand`, in time order, none older than what was said
    /// before.
    Rows {
        /// Position in the demands the tap was opened with.
        demand: usize,
        /// The rows.
        batch: Batch,
    },
    /// Groups that the source folded, of demand number `demand`, which has a fold. They come before
    /// any heartbeat at or past the end of their interval and before any row of the same demand that
    /// is later: the rows that were not folded come as [`Said::Rows`], and whoever hears one knows
    /// that what is earlier is complete.
    Folded {
        /// Position in the demands the tap was opened with.
        demand: usize,
        /// The groups.
        folded: Folded,
    },
    /// No more rows at or before this instant will come, in any stream.
    Heartbeat(Nanos),
    /// Nothing came within the patience given.
    Quiet,
    /// The source has ended; nothing more will come.
    End,
}

/// A count of something the tap did or lost, for stream `weir` and the closing summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// What: `events_in`, `events_lost`, `unseen`, `bad_records`, ...
    pub counter: &'static str,
    /// Why, for losses: `ring_full`, `table_full`, `malformed`, ...
    pub cause: Option<&'static str>,
    /// The device or file concerned.
    pub device: Option<Symbol>,
    /// How many since the tap was opened.
    pub total: i64,
}

/// A source of I/O events.
pub trait Tap: Send {
    /// What comes next; waits up to `patience` for it.
    ///
    /// # Errors
    /// When the source fails for good. What was said before stands.
    fn next(&mut self, patience: Duration) -> Result<Said, TapError>;

    /// All counts so far.
    fn counts(&mut self) -> Vec<Count>;

    /// When the oldest request began that is in flight and whose end the source is waiting for;
    /// `None` without one, and where a source does not wait. Another source of the same events that
    /// was opened before then knows all requests from their beginning on.
    fn in_flight_since(&mut self) -> Option<Nanos> {
        None
    }

    /// How far through a file, from 0 to 1; `None` for a live source.
    fn progress(&self) -> Option<f64> {
        None
    }

    /// What the source does in place of the engine, and what it could not do: one line each, for
    /// `weir explain`.
    fn describe(&self) -> Vec<String>;

    /// The first bad records of a file, in words, for the closing summary; [`Tap::counts`] has how
    /// many there were.
    fn messages(&self) -> Vec<String> {
        Vec::new()
    }

    /// True when the source does not know when requests finished: the responses in `IO` and in a
    /// recording are then assumed at the requests' own times, without latency, and `IOstream` has
    /// requests only.
    fn responses_assumed(&self) -> bool {
        false
    }

    /// Whether a file promises that requests are paired with their responses: each request has a
    /// number that no other has, and `IO` tells of each response in `IOstream` when its request was.
    ///
    /// # Errors
    /// Why not, as a sentence without full stop.
    fn pairs(&self) -> Result<(), String> {
        Err("it does not say whether its requests are paired with their responses".into())
    }
}
