//! The loop that every command runs: taps deliver rows, the engine computes deltas, sinks print
//! them.
//!
//! ```text
//! tap ─(thread)─ bounded channel ─ merge by time ─ engine (this thread) ─ bounded channel ─ sinks (thread)
//! ```
//!
//! A slow stage blocks the previous ones; only a live tap cannot wait, and counts the events that
//! it loses. This module has the only clocks: how long an idle source may delay the others, when
//! counters are read, when progress is shown.

mod column_mapping;
mod conclude;
mod counters;
mod feed;
mod merge;
mod progress;
mod pump;
mod shows;
mod stop;
mod summary;
#[cfg(test)]
mod tests;

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_model::Nanos;
use weir_query::engine::{Engine, QueryId};
use weir_query::function::EvalError;
use weir_query::{EngineCounts, Plan};
use weir_sink::Sink;
use weir_tap::{EventCount, Tap};

pub use column_mapping::{ColumnMapping, MappedColumn};
pub use conclude::conclude;
pub use counters::{
    Changed, CounterReading, Counters, engine_counts, process_readings, process_usage,
    requests_finished,
};
pub use feed::{COUNTS_EVERY, Feed, Message, TapCounts};
pub use progress::{Progress, ProgressKind, RunProgress};
pub use stop::{Stop, wall_clock};
pub use summary::{MISSED, missed, summary};

use crate::failure::Failure;
use pump::{Pump, Query};
use shows::Shows;

/// The name of the stream that the loop itself produces.
pub const OWN_STREAM: &str = "weir";

/// Capacity of the queue for messages of a tap; the tap waits when it is full.
const QUEUE_MAX: usize = 16;

/// A tap and the destinations of its rows.
pub struct TapInput {
    /// The tap.
    pub tap: Box<dyn Tap>,
    /// Its events happen now.
    pub live: bool,
    /// For a recording, the requested interval, from its first event on.
    pub span_ns: Option<Nanos>,
    /// The destination of the rows of each demand.
    pub routes: Vec<Route>,
}

/// The destination of the rows of one demand of a tap.
#[derive(Clone)]
pub struct Route {
    /// Position in the tap's demands.
    pub demand: usize,
    /// The engine's source.
    pub source: String,
    /// The number of the tap's nanoseconds in one instant of the engine.
    pub instant_ns: i64,
    /// The conversion from the tap's columns to those of the source, where they differ.
    pub mapping: Option<ColumnMapping>,
}

/// Options of the loop.
pub struct LoopOptions {
    /// How long a silent live source may delay the others.
    pub idle: Duration,
    /// Whether a query reads stream `weir`.
    pub own_stream: bool,
    /// The number of nanoseconds in one instant of the engine.
    pub instant_ns: i64,
    /// What is printed on standard error during the run.
    pub progress: ProgressKind,
    /// Queries that are added and ended during the run.
    pub changes: Option<Receiver<Change>>,
    /// The plan whose answer is complete: from the first instant of the inputs to the end of the
    /// slide that is open when they end. Without it, answers begin and end with the rows, as in
    /// STREAM.
    pub whole: Option<Arc<Plan>>,
    /// Sinks receive the watermark after each step ([`Sink::advance`]). As with `whole`, results
    /// begin with the first instant of the inputs.
    pub watermarks: bool,
    /// The taps' current counts, for a sink that stores them.
    pub counts: Arc<Mutex<Vec<EventCount>>>,
}

/// A change of the queries during the run.
pub enum Change {
    /// Adds a query of sources that the inputs already serve. It receives rows from now on.
    Ask {
        /// The name for [`Change::End`].
        name: u64,
        /// The query.
        plan: Arc<Plan>,
        /// The sink for its answer.
        sink: Box<dyn Sink>,
    },
    /// Ends the query with that name, and completes its sink.
    End {
        /// The name given when it was added.
        name: u64,
    },
}

/// The result of a run.
pub struct RunReport {
    /// All counts of the taps.
    pub counts: Vec<EventCount>,
    /// The counts of the engine, without queries that failed.
    pub engine: EngineCounts,
    /// Queries that failed.
    pub failed: Vec<(QueryId, EvalError)>,
    /// Remarks for readers of the output.
    pub remarks: Vec<String>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// A query of the engine and the sink for its answer.
pub struct Show {
    /// The query.
    pub id: QueryId,
    /// The sink for its answer.
    pub sink: Box<dyn Sink>,
    /// Its name for [`Change::End`], if any.
    pub name: Option<u64>,
    /// Nothing is shown of the last instant, since no later one begins.
    pub last_instant_open: bool,
}

impl Show {
    /// The complete answer of a query in a sink.
    pub fn new(id: QueryId, sink: Box<dyn Sink>) -> Show {
        Show {
            id,
            sink,
            name: None,
            last_instant_open: false,
        }
    }
}

/// Runs until the inputs end, a signal is received, or all sinks have ended. `shows` are the
/// engine's queries.
///
/// # Errors
/// When a tap or a sink fails; earlier output is complete.
pub fn run(
    engine: Engine,
    inputs: Vec<TapInput>,
    shows: Vec<Show>,
    options: LoopOptions,
    stop: &Stop,
) -> Result<RunReport, Failure> {
    let queries: Vec<Query> = shows.iter().map(Query::of).collect();
    let shows = Shows::start(shows.into_iter().map(|s| s.sink).collect());
    let whole = options.whole.is_some();
    std::thread::scope(|scope| {
        let mut pump = Pump::new(engine, queries, shows, options, stop);
        for input in inputs {
            let (messages, arrivals) = sync_channel(QUEUE_MAX);
            pump.listen_to(arrivals, input.live, input.routes);
            let feed = Feed {
                tap: input.tap,
                live: input.live,
                span_ns: input.span_ns,
                stop: stop.clone(),
                counts_every: COUNTS_EVERY,
                whole,
                messages,
                listener: std::thread::current(),
            };
            scope.spawn(move || feed.run());
        }
        pump.run();
        // The channels are closed when the pump is dropped, so that no tap waits for space in one.
        stop.abandon();
        pump.report()
    })
}
