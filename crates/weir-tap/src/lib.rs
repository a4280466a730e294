//! Taps: sources of I/O events, live by eBPF and from trace files.
//!
//! A tap receives what the queries need (a [`weir_model::Demand`] per stream) and then delivers what
//! it saw, in timestamp order. Taps do not depend on queries or sinks. The only `unsafe` code and the only C
//! of the project live here.

use std::time::Duration;

use weir_model::{Batch, Folded, Nanos, Symbol};

pub mod ebpf;
pub mod elevation;
pub mod error;
pub mod format;
pub mod inspection;
pub mod inventory;
mod landlock;
pub mod live;
pub mod qmp;
mod seccomp;
mod shared;
pub mod streams;
pub mod tapdisk;
pub mod user;
pub mod vdisk;

pub use ebpf::hist;
pub use ebpf::monotonic_ns;
pub use error::TapError;

/// The streams a tap can be asked for, beside those of the catalog: every row of `IOstream`
/// (requests and responses), in the schema of `IO`, so that responses carry their times. It is what
/// a recording holds.
pub const RECORDING: &str = "recording";

/// The counter of requests that a tap has added up into groups and given no row of.
pub const FOLDED: &str = "requests_folded";

/// Counter of recordings without end: their writer was killed, or they were cut off. How much is
/// missing is not known.
pub const UNFINISHED: &str = "recordings_unfinished";

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
    /// Why, for losses: `ring_full`, `not_run`, `table_full`, `malformed`, ...
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

    /// The groups of the intervals under way, as far as these have come, each with its demand. The
    /// last call of all: they are not delivered a second time.
    fn close(&mut self) -> Vec<(usize, Folded)> {
        Vec::new()
    }

    /// All counts so far.
    fn counts(&mut self) -> Vec<Count>;

    /// How many events have been lost so far, as far as that is known without looking: what changes when
    /// [`Tap::counts`] has a new loss. 0 where a source does not know.
    fn lost(&self) -> i64 {
        0
    }

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
}
