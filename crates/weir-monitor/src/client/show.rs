//! Watches a query of a monitor and prints its results, until it ends or the output is closed.

use std::time::{Duration, Instant};

use weir_model::{Nanos, Shape};
use weir_sink::{ResultSchema, Sink, SinkError, arrow};
use weir_wire::{Client, ResultUpdate, SubmittedQuery, Watch, WatchEvent, WireError};

use super::replica::Replica;
use super::{MissedRows, UpdateNote};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::Stop;

/// How long to wait for results before signals and clocks are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The minimum interval between flushes of the output.
const FLUSH_EVERY: Duration = Duration::from_millis(100);

/// The delay before the next attempt to connect after a lost connection: initial and maximum.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// The maximum where another monitor can take over.
const RETRY_DELAY_STANDBY: Duration = Duration::from_secs(1);

/// The query to watch, and for how long.
pub struct PrintOptions<'a> {
    /// The query.
    pub query: &'a SubmittedQuery,
    /// It continues without clients.
    pub standing: bool,
    /// The duration of watching.
    pub duration: Option<Duration>,
    /// The number of the monitor's nanoseconds per instant of the output.
    pub instant_ns: i64,
}

/// The description of the results that a monitor sent.
///
/// # Errors
/// If there is none.
pub fn answer(placed: &SubmittedQuery, raw: bool) -> Result<ResultSchema, Failure> {
    let answer = arrow::answer_of(&placed.schema).map_err(|why| {
        Failure::world(format_args!(
            "query `{}`: the monitor sent an invalid description of the result: {why}",
            placed.name
        ))
    })?;
    Ok(ResultSchema { raw, ..answer })
}

/// Prints that a query is standing, and how to end it.
pub fn print_standing(placed: &SubmittedQuery) {
    let name = &placed.name;
    output::notice(format_args!(
        "weir: standing query `{name}` submitted; `weir fleet cancel {name}` ends it"
    ));
}

/// Writes a query's results to `sink` until it ends, a signal arrives, the duration has passed, or
/// the output is closed. A query that is not standing ends soon after its last client has left.
///
/// # Errors
/// If the sink fails, or the connection and with it the query is lost; earlier results are written.
pub fn print_results(
    client: &mut Client,
    options: &PrintOptions,
    answer: &ResultSchema,
    sink: Box<dyn Sink>,
    stop: &Stop,
) -> Result<Ending, Failure> {
    let mut printer = Printer {
        answer,
        replica: (answer.shape == Shape::Relation).then(|| Replica::new(answer)),
        sink,
        note: UpdateNote::default(),
        missed: MissedRows::default(),
        complete_to: Nanos::MIN,
        repeated_to: Nanos::MIN,
        is_partial: false,
        instant_ns: options.instant_ns,
        flushed: Instant::now(),
    };
    let end = printer.watch(client, options, stop);
    let finished = printer.sink.finish();
    let mut remarks = printer.sink.remarks();
    remarks.extend(printer.replica.iter().flat_map(Replica::remarks));
    remarks.dedup();
    for remark in remarks {
        output::notice(format_args!("weir: {remark}"));
    }
    if let Some(sentence) = printer.note.sentence() {
        output::notice(format_args!("weir: {sentence}"));
    }
    let end = end?;
    match finished {
        Err(SinkError::Closed { .. }) | Ok(()) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(match (end, &printer.note.ended) {
        (End::Signal(number), _) => Ending::Signal(number),
        (End::Ended, Some(why)) if why != ENDED_BY_CANCEL => {
            output::notice(format_args!("weir: the query has ended: {why}"));
            Ending::Failed
        }
        _ => Ending::Done,
    })
}

/// The reason of an end that a user requested.
pub const ENDED_BY_CANCEL: &str = "cancelled";

/// Why the output ended.
enum End {
    /// The query has ended.
    Ended,
    /// A signal arrived.
    Signal(i32),
    /// The duration has passed, or the output was closed.
    Stopped,
}

struct Printer<'a> {
    answer: &'a ResultSchema,
    /// The current rows of a relation.
    replica: Option<Replica>,
    sink: Box<dyn Sink>,
    /// The completeness of the results, as known so far.
    note: UpdateNote,
    /// The missed rows, over all connections.
    missed: MissedRows,
    /// All rows up to this instant were received.
    complete_to: Nanos,
    /// Rows of a stream up to this instant were received on an earlier connection: a monitor that
    /// was restarted, or has taken over, emits those after its last checkpoint again.
    repeated_to: Nanos,
    /// The last instant may be partial.
    is_partial: bool,
    instant_ns: i64,
    flushed: Instant,
}

impl Printer<'_> {
    /// Watches until the end; reconnects if the query is standing.
    fn watch(
        &mut self,
        client: &mut Client,
        options: &PrintOptions,
        stop: &Stop,
    ) -> Result<End, Failure> {
        let until = options.duration.map(|span| Instant::now() + span);
        let mut wait = RETRY_DELAYS.0;
        loop {
            self.repeated_to = self.complete_to;
            let lost = match client.watch(&options.query.name) {
                Ok(mut watch) => match self.follow(&mut watch, until, stop) {
                    Ok(end) => return Ok(end),
                    Err(WatchFailure::Sink(SinkError::Closed { .. })) => return Ok(End::Stopped),
                    Err(WatchFailure::Sink(error)) => return Err(error.into()),
                    Err(WatchFailure::Malformed(why)) => return Err(Failure::world(why)),
                    Err(WatchFailure::Wire(error)) => {
                        wait = RETRY_DELAYS.0;
                        error
                    }
                },
                Err(error) => error,
            };
            let passing = matches!(
                lost,
                WireError::Broken { .. }
                    | WireError::Unreachable { .. }
                    | WireError::Standby { .. }
            );
            if !passing || !options.standing {
                return Err(self.lost(lost, options));
            }
            output::notice(format_args!(
                "weir: {lost}; the query continues at the monitor, \
                                      reconnecting"
            ));
            if let Some(end) = pause(wait, until, stop) {
                return Ok(end);
            }
            let wait_max = match client.has_standbys() {
                true => RETRY_DELAY_STANDBY,
                false => RETRY_DELAYS.1,
            };
            wait = (wait * 2).min(wait_max);
            // If that fails, the next attempt to watch fails as well.
            let _ = client.reconnect();
        }
    }

    /// The error of a lost connection, with its effect on the results.
    fn lost(&self, error: WireError, options: &PrintOptions) -> Failure {
        if options.standing {
            return error.into();
        }
        match self.note.at {
            Some(at) => Failure::world(format_args!(
                "{error}; the result is complete up to {} and omits later rows",
                weir_sink::time::timestamp(at)
            )),
            None => error.into(),
        }
    }

    /// Writes the results of one connection.
    fn follow(
        &mut self,
        watch: &mut Watch,
        until: Option<Instant>,
        stop: &Stop,
    ) -> Result<End, WatchFailure> {
        loop {
            if let Some(number) = stop.signal() {
                return Ok(End::Signal(number));
            }
            let over = until.is_some_and(|until| Instant::now() >= until);
            if over || stop.is_abandoned() {
                return Ok(End::Stopped);
            }
            match watch.next(POLL_INTERVAL).map_err(WatchFailure::Wire)? {
                WatchEvent::Update(update) => self.write_update(&update)?,
                WatchEvent::Timeout => {}
                WatchEvent::Ended => return Ok(End::Ended),
            }
            if !self.is_partial && self.flushed.elapsed() >= FLUSH_EVERY {
                self.sink.flush().map_err(WatchFailure::Sink)?;
                self.flushed = Instant::now();
            }
        }
    }

    /// Writes rows and stores their note.
    fn write_update(&mut self, update: &ResultUpdate) -> Result<(), WatchFailure> {
        let note = UpdateNote::from_json(&update.note);
        let at = note.at.or(self.note.at).unwrap_or(0);
        if let (Some(replica), Some(rows)) = (&mut self.replica, note.reset) {
            replica.begin_snapshot(rows);
        }
        self.is_partial = (self.is_partial || update.batch.num_rows() > 0) && !note.whole;
        let begins = note.reset.is_some();
        self.missed.count(&note, update.batch.num_rows() as u64);
        self.note = std::mem::take(&mut self.note).updated_by(note);
        self.note.skipped = self.note.skipped.max(Some(self.missed.rows()));
        if self.note.whole {
            self.complete_to = self.complete_to.max(at);
        }
        if update.batch.num_rows() == 0 && !begins {
            return Ok(());
        }
        let batch = arrow::batch_of(self.answer, &update.batch).map_err(WatchFailure::Malformed)?;
        let batch = match &mut self.replica {
            Some(replica) => replica.apply(batch, at),
            None => {
                let repeated = batch.ts.partition_point(|&ts| ts <= self.repeated_to);
                let new = batch.slice(repeated, batch.len() - repeated);
                (!new.is_empty()).then_some(new)
            }
        };
        match batch {
            Some(mut batch) => {
                if self.instant_ns != 1 {
                    let instants = batch.ts.iter().map(|ts| ts.div_euclid(self.instant_ns));
                    batch.ts = instants.collect();
                }
                self.sink.write(&batch).map_err(WatchFailure::Sink)
            }
            None => Ok(()),
        }
    }
}

/// Why the output of a connection stopped.
enum WatchFailure {
    Wire(WireError),
    Sink(SinkError),
    /// The results differ from their description.
    Malformed(String),
}

/// Waits, unless the duration has passed or a signal arrived.
fn pause(wait: Duration, until: Option<Instant>, stop: &Stop) -> Option<End> {
    let left = until.map_or(wait, |until| {
        until.saturating_duration_since(Instant::now())
    });
    if !stop.wait(wait.min(left)) {
        return Some(stop.signal().map_or(End::Stopped, End::Signal));
    }
    (left <= wait && until.is_some()).then_some(End::Stopped)
}
