//! [`open`]: the queries of a source, whose answers are sent to a reader.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_model::Catalog;
use weir_query::Plan;
use weir_query::engine::Engine;
use weir_tap::EventCount;
use weir_tap::ebpf::Files;

use super::ledger::{Ledger, LedgerReader};
use super::losses::Losses;
use super::questions::{CounterSelection, Questions};
use super::totals::Totals;
use weir_runtime::failure::Failure;
use weir_runtime::plans;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::{self, LoopOptions, ProgressKind, RunReport, Show, Stop, TapInput};
use weir_runtime::source;
use weir_runtime::source::SourceOptions;

/// The interval at which rows are read: on an idle host it is twice as long, in which the part of a
/// ring for optional rows takes 160,000 requests per second of one processor.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The queries of an open source.
pub struct Opened {
    engine: Engine,
    inputs: Vec<TapInput>,
    shows: Vec<Show>,
    options: LoopOptions,
}

/// Opens the source. The taps' own counts are kept in `counts`.
///
/// # Errors
/// When the source cannot be opened.
pub fn open(
    args: &SourceOptions,
    mut engine: Engine,
    wanted: &CounterSelection,
    totals: Arc<Mutex<Totals>>,
    reader: Box<dyn LedgerReader>,
    counts: Arc<Mutex<Vec<EventCount>>>,
    stop: &Stop,
) -> Result<Opened, Failure> {
    let questions = Questions::new(wanted);
    let compile = |text: String| {
        let question = QueryText::new(text);
        question.compile(&Catalog::builtin(), wanted.live)
    };
    let counters = compile(questions.counters)?;
    let spans = questions.spans.map(compile).transpose()?;
    let reader = Box::new(Losses::new(reader, counts.clone()));
    let [span_sink, counter_sink] = Ledger::sinks(wanted, totals, reader);
    // Only busy times need single requests. The counters are complete without them.
    let mut args = args.clone();
    args.optional_rows = wanted.live;
    // Nothing is reported before the end of a slice, and each reading of the rings costs as much as
    // some hundred rows.
    if wanted.live {
        args.poll_interval = args.poll_interval.or(Some(POLL_INTERVAL));
        args.idle = args.idle.max(5 * POLL_INTERVAL);
    }
    let args = &args;
    let rows: Vec<&Plan> = spans.iter().map(|spans| &*spans.plan).collect();
    let placement = plans::placed_beside(&[&*counters.plan], &rows, &args.capabilities()?);
    let [counters, rest @ ..] = &placement.plans[..] else {
        unreachable!("a plan stays a plan");
    };
    let mut shows = Vec::new();
    // Times first, so that they are available when the counters are read.
    shows.extend(
        rest.first()
            .map(|spans| Show::new(engine.add(spans), span_sink)),
    );
    shows.push(Show::new(engine.add(counters), counter_sink));
    let inputs = source::open(args, &placement, stop)?;
    let options = LoopOptions {
        idle: args.idle,
        own_stream: false,
        instant_ns: 1,
        progress: ProgressKind::Nothing,
        whole: None,
        watermarks: false,
        changes: None,
        counts,
    };
    Ok(Opened {
        engine,
        inputs,
        shows,
        options,
    })
}

impl Opened {
    /// Drops all privileges, before other threads start.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn drop_privileges(&self, args: &SourceOptions, files: Files) -> Result<(), Failure> {
        source::drop_privileges(args, &self.inputs, files)
    }

    /// Runs the queries until the source ends, the reader ends, or `stop`.
    ///
    /// # Errors
    /// When the source cannot be read, or the reader fails.
    pub fn run(self, stop: &Stop) -> Result<RunReport, Failure> {
        run_loop::run(self.engine, self.inputs, self.shows, self.options, stop)
    }
}
