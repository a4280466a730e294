//! The loop that every command runs: taps say rows, the engine turns them into deltas, sinks show
//! those.
//!
//! ```text
//! tap ─(thread)─ bounded channel ─ merge by time ─ engine (this thread) ─ bounded channel ─ sinks (thread)
//! ```
//!
//! Whoever is slow makes those before it wait; only a live tap cannot wait, and counts what it
//! loses. Here are the only clocks: how long an idle source may hold the others back, when counters
//! are read, when progress is shown.

mod adoption;
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
use weir_query::{Counts, Plan};
use weir_sink::Sink;
use weir_tap::{Count, Tap};

pub use adoption::{Adopted, Adoption};
pub use conclude::conclude;
pub use counters::{
    Changed, Counters, Reading, engine_counts, process_readings, process_usage, requests_finished,
};
pub use feed::{Account, COUNTS_EVERY, Feed, Message};
pub use progress::{Progress, State, Telling};
pub use stop::{Stop, wall_clock};
pub use summary::{MISSED, missed, summary};

use crate::failure::Failure;
use pump::{Pump, Query};
use shows::Shows;

/// The name of the stream that the loop itself produces.
pub const OWN_STREAM: &str = "weir";

/// What a tap says waits in a queue of so many words; then the tap waits.
const QUEUE_MAX: usize = 16;

/// A tap and where its rows go.
pub struct Input {
    /// The tap.
    pub tap: Box<dyn Tap>,
    /// Its events happen now.
    pub live: bool,
    /// Of a recording, how much is wanted, from its first event on.
    pub span_ns: Option<Nanos>,
    /// Which rows go where.
    pub outlets: Vec<Outlet>,
}

/// Where the rows of one demand of a tap go.
#[derive(Clone)]
pub struct Outlet {
    /// Position in the tap's demands.
    pub demand: usize,
    /// The engine's source.
    pub source: String,
    /// Nanoseconds of the tap that make one instant of the engine.
    pub instant_ns: i64,
    /// From the tap's columns to the source's, where they differ.
    pub adoption: Option<Adoption>,
}

/// How the loop runs.
pub struct Options {
    /// How long a live source may hold back the others without a word.
    pub idle: Duration,
    /// Whether a query reads stream `weir`.
    pub own_stream: bool,
    /// Nanoseconds that make one instant of the engine.
    pub instant_ns: i64,
    /// What is told on standard error while the work goes on.
    pub telling: Telling,
    /// Other questions, asked and ended while the loop runs.
    pub changes: Option<Receiver<Change>>,
    /// The plan whose answer is to be whole: from the first instant of the inputs on, and up to the
    /// end of the slide that is open when they end. Without it, answers begin and end with the rows,
    /// as STREAM's do.
    pub whole: Option<Arc<Plan>>,
    /// Where the taps' counts are kept up to date, for a sink that writes them down.
    pub counts: Arc<Mutex<Vec<Count>>>,
}

/// A change of the questions while the loop runs.
pub enum Change {
    /// Asks one more query, of sources that the inputs serve already. It sees what comes from here
    /// on.
    Ask {
        /// What [`Change::End`] will call it.
        name: u64,
        /// The query.
        plan: Arc<Plan>,
        /// Where its answer goes.
        sink: Box<dyn Sink>,
    },
    /// Ends the query of that name, and completes its sink.
    End {
        /// As it was asked.
        name: u64,
    },
}

/// What happened.
pub struct Report {
    /// Everything the taps counted.
    pub counts: Vec<Count>,
    /// What the engine counted, of queries that did not fail.
    pub engine: Counts,
    /// Queries that failed.
    pub failed: Vec<(QueryId, EvalError)>,
    /// What readers of the output should know.
    pub remarks: Vec<String>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// A query of the engine and where its answer goes.
pub struct Show {
    /// The query.
    pub id: QueryId,
    /// Where its answer goes.
    pub sink: Box<dyn Sink>,
    /// What [`Change::End`] calls it, if anything.
    pub name: Option<u64>,
    /// Nothing is shown of the very last instant, since no later one begins.
    pub last_instant_open: bool,
}

impl Show {
    /// All of a query's answer in a sink.
    pub fn new(id: QueryId, sink: Box<dyn Sink>) -> Show {
        Show {
            id,
            sink,
            name: None,
            last_instant_open: false,
        }
    }
}

/// Runs until the inputs end, a signal comes, or nobody reads the answers any more. `shows` are the
/// engine's queries.
///
/// # Errors
/// When a tap or a sink fails; what came before is shown and complete.
pub fn run(
    engine: Engine,
    inputs: Vec<Input>,
    shows: Vec<Show>,
    options: Options,
    stop: &Stop,
) -> Result<Report, Failure> {
    let queries: Vec<Query> = shows.iter().map(Query::of).collect();
    let shows = Shows::start(shows.into_iter().map(|s| s.sink).collect());
    let whole = options.whole.is_some();
    std::thread::scope(|scope| {
        let mut pump = Pump::new(engine, queries, shows, options, stop);
        for input in inputs {
            let (messages, arrivals) = sync_channel(QUEUE_MAX);
            pump.listen_to(arrivals, input.live, input.outlets);
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
        // The channels close with the pump, so that no tap waits for a place in one.
        stop.abandon();
        pump.report()
    })
}
