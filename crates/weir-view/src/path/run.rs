//! [`run`]: reads the rows of `IOpath` and prints a table at the end of each interval; [`sink`] does
//! so with rows that a monitor sends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_model::{Batch, NANOS_PER_SECOND, Nanos};
use weir_query::engine::Engine;
use weir_runtime::device_names;
use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::plans;
use weir_runtime::quantity;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::{self, LoopOptions, ProgressKind, RunReport, Show, Stop, wall_clock};
use weir_runtime::source::{self, SourceOptions};
use weir_sink::{Sink, SinkError, Target};
use weir_tap::ebpf::Files;

use super::row::PathRow;
use super::selection::{self, PathSelection};
use super::table::PathTable;
use super::{json, text};

/// Maximum delay of rows.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Options of the tables.
#[derive(Clone, Debug)]
pub struct PathOptions {
    /// The selected requests.
    pub selection: PathSelection,
    /// The time of each table; `None` for one table of everything.
    pub interval: Option<Duration>,
    /// Maximum number of tables; `None` for no limit.
    pub tables_max: Option<u64>,
    /// JSON instead of text.
    pub json: bool,
}

impl PathOptions {
    /// The queries, with what they are for.
    pub fn queries(&self, live: bool) -> Vec<(&'static str, String)> {
        let ends = self.interval.filter(|_| live).map(selection::ends);
        let ends = ends.map(|query| ("the end of each interval", query));
        let rows = ("the requests", self.selection.rows());
        [rows].into_iter().chain(ends).collect()
    }
}

/// Prints tables until the source ends, `stop`, or the last table.
///
/// # Errors
/// When the source has no stream `IOpath` or cannot be read, or the output fails.
pub fn run(
    source: &SourceOptions,
    mut engine: Engine,
    options: &PathOptions,
    stop: &Stop,
) -> Result<RunReport, Failure> {
    let live = source.is_live();
    let mut source = source.clone();
    // Single requests are not displayed as they happen: larger batches are cheaper.
    source.poll_interval = Some(POLL_INTERVAL);
    source.idle = source.idle.max(5 * POLL_INTERVAL);
    let plans = options.queries(live).into_iter().map(|(_, text)| {
        let question = QueryText::new(text);
        let checked = question.compile_over(&source)?;
        Ok(device_names::resolved(&checked.plan, &source))
    });
    let plans: Vec<_> = plans.collect::<Result<_, Failure>>()?;
    let plans: Vec<_> = plans.iter().map(|plan| &**plan).collect();
    let placement = plans::of_rows(&plans, &source.capabilities()?);
    let target = output::standard_output(live)?;
    let inputs = source::open(&source, &placement, stop)?;
    let tables = Tables::new(options.clone(), live, target, stop.clone());
    let tables = Arc::new(Mutex::new(tables));
    let sinks: [Box<dyn Sink>; 2] = [
        Box::new(Requests(tables.clone())),
        Box::new(Ends {
            tables: tables.clone(),
            at: None,
        }),
    ];
    let shows = placement.plans.iter().zip(sinks);
    let shows = shows.map(|(plan, sink)| Show::new(engine.add(plan), sink));
    let shows = shows.collect();
    let loop_options = LoopOptions {
        idle: source.idle,
        own_stream: live,
        instant_ns: 1,
        progress: match live {
            true => ProgressKind::Nothing,
            false => ProgressKind::Files,
        },
        whole: None,
        watermarks: false,
        changes: None,
        counts: Arc::default(),
    };
    source::drop_privileges(&source, &inputs, Files::Open)?;
    let report = run_loop::run(engine, inputs, shows, loop_options, stop)?;
    if tables.lock().expect("no panic while locked").printed == 0 {
        output::notice("weir: no requests were observed");
    }
    Ok(report)
}

/// Writes the tables of intervals.
struct Tables {
    options: PathOptions,
    interval_ns: Option<Nanos>,
    live: bool,
    target: Target,
    stop: Stop,
    table: PathTable,
    /// The current interval; `None` before the first one.
    interval: Option<(Nanos, Nanos)>,
    printed: u64,
}

impl Tables {
    fn new(options: PathOptions, live: bool, target: Target, stop: Stop) -> Tables {
        let interval_ns = options.interval.map(quantity::nanos);
        let now = wall_clock();
        // The first interval that is observed completely.
        let first = |interval_ns| within(now + interval_ns, interval_ns);
        Tables {
            interval_ns,
            live,
            target,
            stop,
            table: empty(&options),
            interval: live.then(|| interval_ns.map_or((now, now), first)),
            options,
            printed: 0,
        }
    }

    fn add(&mut self, row: &PathRow) -> Result<(), SinkError> {
        self.reach(row.ts)?;
        let first = || {
            self.interval_ns
                .map_or((row.ts, row.ts), |ns| within(row.ts, ns))
        };
        let interval = self.interval.get_or_insert_with(first);
        if self.interval_ns.is_none() {
            interval.1 = interval.1.max(row.ts);
        }
        if row.ts >= interval.0 {
            self.table.add(row);
        } else if self.printed > 0 {
            self.table.late += 1;
        }
        Ok(())
    }

    /// Prints the current interval if it has ended at `at`. Further intervals without requests are
    /// omitted.
    fn reach(&mut self, at: Nanos) -> Result<(), SinkError> {
        let (Some(interval_ns), Some((_, end))) = (self.interval_ns, self.interval) else {
            return Ok(());
        };
        if at < end {
            return Ok(());
        }
        self.print()?;
        self.interval = Some(within(at, interval_ns));
        Ok(())
    }

    fn print(&mut self) -> Result<(), SinkError> {
        let (begin, end) = self.interval.expect("there is an interval");
        let table = std::mem::replace(&mut self.table, empty(&self.options));
        let text = match self.options.json {
            true => json::json(begin, end, &table),
            false => text::text(begin, end, &table),
        };
        self.target.put(&text)?;
        self.target.flush()?;
        self.printed += 1;
        if self
            .options
            .tables_max
            .is_some_and(|max| self.printed >= max)
        {
            self.stop.abandon();
            return Err(SinkError::Closed {
                name: "the last table is printed".into(),
            });
        }
        Ok(())
    }

    /// The table of everything, or the remainder of a recording.
    fn finish(&mut self) -> Result<(), SinkError> {
        let is_whole = self.interval_ns.is_none();
        if let (true, true, Some(interval)) = (is_whole, self.live, &mut self.interval) {
            interval.1 = interval.1.max(self.stop.live_end().min(wall_clock()));
        }
        match !self.table.is_empty() && (is_whole || !self.live) {
            true => self.print(),
            false => Ok(()),
        }
    }
}

fn empty(options: &PathOptions) -> PathTable {
    PathTable::new(options.selection.stream, options.selection.slowest)
}

/// The interval that contains `at`.
fn within(at: Nanos, interval_ns: Nanos) -> (Nanos, Nanos) {
    let begin = at.div_euclid(interval_ns) * interval_ns;
    (begin, begin + interval_ns)
}

/// The sink for the rows.
struct Requests(Arc<Mutex<Tables>>);

impl Sink for Requests {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut tables = self.0.lock().expect("no panic while locked");
        let stream = tables.options.selection.stream;
        let mut rows = (0..batch.len()).filter_map(|row| PathRow::of(stream, batch, row));
        rows.try_for_each(|row| tables.add(&row))
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.0.lock().expect("no panic while locked").finish()
    }
}

/// How much later than its requests a table of a fleet is printed at the latest: agents and the
/// pairs of both sides take time. Rows of a later interval end one at once.
const FLEET_DELAY: Nanos = 5 * NANOS_PER_SECOND;

/// The sink for the rows that a monitor sends: it prints a table at the end of each interval. The
/// second part is the number of printed tables.
///
/// # Errors
/// When there is no standard output.
pub fn sink(options: &PathOptions, stop: &Stop) -> Result<(Box<dyn Sink>, PrintedTables), Failure> {
    let target = output::standard_output(true)?;
    let tables = Tables::new(options.clone(), true, target, stop.clone());
    let tables = Arc::new(Mutex::new(tables));
    let rows = Requests(tables.clone());
    let printed = PrintedTables(tables);
    Ok((Box::new(FleetRequests(rows)), printed))
}

/// What [`sink`] has printed.
pub struct PrintedTables(Arc<Mutex<Tables>>);

impl PrintedTables {
    /// Prints a notice if there was no table.
    pub fn conclude(&self) {
        if self.0.lock().expect("no panic while locked").printed == 0 {
            output::notice("weir: no requests were observed");
        }
    }
}

/// The sink for rows that a monitor sends.
struct FleetRequests(Requests);

impl Sink for FleetRequests {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.0.write(batch)
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let mut tables = self.0.0.lock().expect("no panic while locked");
        tables.reach(wall_clock() - FLEET_DELAY)
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.0.finish()
    }
}

/// The sink for the ends of intervals.
struct Ends {
    tables: Arc<Mutex<Tables>>,
    /// The last end. Rows of the same step may follow it.
    at: Option<Nanos>,
}

impl Sink for Ends {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.at = batch.ts.last().copied().or(self.at);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let mut tables = self.tables.lock().expect("no panic while locked");
        self.at.take().map_or(Ok(()), |at| tables.reach(at))
    }
}
