//! Taps: sources of I/O events, live by eBPF and from trace files.
//!
//! A tap receives what the queries need (a [`weir_model::Demand`] per stream) and then delivers the
//! observed events in timestamp order. Taps do not depend on queries or sinks. This crate contains
//! the only `unsafe` code and the only C of the project.

use std::time::Duration;

use weir_model::{Batch, Folded, Nanos, Symbol};

pub mod control;
pub mod ebpf;
pub mod elevation;
pub mod error;
pub mod format;
pub mod inspection;
pub mod inventory;
mod io_columns;
pub mod journal;
mod landlock;
pub mod live;
pub mod probe;
pub mod qmp;
mod retimed;
mod seccomp;
mod shared;
pub mod source;
pub mod streams;
pub mod symbols;
pub mod tapdisk;
pub mod user;
pub mod vdisk;

pub use ebpf::hist;
pub use ebpf::monotonic_ns;
pub use error::TapError;
pub use retimed::{Retimed, Timing};
pub use weir_model::capabilities::RECORDING;

/// Counter of requests that a tap aggregated into groups and did not deliver as rows.
pub const FOLDED: &str = "requests_folded";

/// Counter of recordings without a footer: the writer was killed, or the file was truncated. The
/// number of missing events is unknown.
pub const UNFINISHED: &str = "recordings_unfinished";

/// The next message of a tap.
#[derive(Debug)]
pub enum TapEvent {
    /// Rows of the stream of demand number `demand`, in timestamp order. No row is earlier than a
    /// row or heartbeat delivered before.
    Rows {
        /// Position in the demands with which the tap was opened.
        demand: usize,
        /// The rows.
        batch: Batch,
    },
    /// Groups that the source folded, of demand number `demand`, which has a fold. They precede any
    /// heartbeat at or after the end of their interval and any later row of the same demand: rows
    /// that were not folded are delivered as [`TapEvent::Rows`], and a row implies that all earlier
    /// intervals are complete.
    Folded {
        /// Position in the demands with which the tap was opened.
        demand: usize,
        /// The groups.
        folded: Folded,
    },
    /// The watermark: no further rows at or before this instant follow, in any stream.
    Heartbeat(Nanos),
    /// Nothing was received within the timeout.
    Quiet,
    /// End of the source; no messages follow.
    End,
}

/// A count of events processed or lost, for stream `weir` and the closing summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCount {
    /// Name of the counter: `events_in`, `events_lost`, `unseen`, `bad_records`, ...
    pub counter: &'static str,
    /// Cause of a loss: `ring_full`, `not_run`, `table_full`, `malformed`, ...
    pub cause: Option<&'static str>,
    /// The device or file concerned.
    pub device: Option<Symbol>,
    /// The total since the tap was opened.
    pub total: i64,
}

impl EventCount {
    /// A count of the whole tap.
    pub fn of(counter: &'static str, cause: Option<&'static str>, total: i64) -> EventCount {
        EventCount {
            counter,
            cause,
            device: None,
            total,
        }
    }
}

/// A source of I/O events.
pub trait Tap: Send {
    /// Returns the next message; waits up to `timeout` for it.
    ///
    /// # Errors
    /// If the source fails permanently. Earlier messages remain valid.
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError>;

    /// The groups of incomplete intervals, as far as they were received, each with its demand. This
    /// must be the last call; the groups are not delivered again.
    fn close(&mut self) -> Vec<(usize, Folded)> {
        Vec::new()
    }

    /// All counts so far.
    fn counts(&mut self) -> Vec<EventCount>;

    /// The number of events lost, as far as it is known without a scan; it changes when
    /// [`Tap::counts`] has a new loss. 0 if the source does not know.
    fn lost(&self) -> i64 {
        0
    }

    /// The start of the oldest request in flight whose completion the source waits for; `None`
    /// without one, and if the source does not wait. Another source of the same events that was
    /// opened before this instant has seen all requests from their start.
    fn in_flight_since(&mut self) -> Option<Nanos> {
        None
    }

    /// The fraction of a file that was read, from 0 to 1; `None` for a live source.
    fn progress(&self) -> Option<f64> {
        None
    }

    /// The operations that the source performs instead of the engine, and those it could not: one
    /// line each, for `weir explain`.
    fn describe(&self) -> Vec<String>;

    /// The first bad records of a file, as text, for the closing summary; [`Tap::counts`] has their
    /// number.
    fn messages(&self) -> Vec<String> {
        Vec::new()
    }

    /// True if the source does not know when requests finished: responses in `IO` and in a
    /// recording then have the requests' own times, without latency, and `IOstream` has requests
    /// only.
    fn responses_assumed(&self) -> bool {
        false
    }
}
