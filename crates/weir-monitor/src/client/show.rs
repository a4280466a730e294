//! Watches a query of a monitor and shows what comes, until it ends or nobody wants more.

use std::time::{Duration, Instant};

use weir_model::Shape;
use weir_sink::{Answer, Sink, SinkError, arrow};
use weir_wire::{Client, ResultUpdate, SubmittedQuery, Watch, WatchEvent, WireError};

use super::held::Held;
use super::{Missed, Note};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::Stop;

/// How long to wait for results before signals and clocks are looked at.
const PATIENCE: Duration = Duration::from_millis(50);

/// How often what was written is brought to the eye, at most.
const FLUSH_EVERY: Duration = Duration::from_millis(100);

/// How long after a lost connection the next attempt comes: first and at the latest.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What is watched, and how long.
pub struct Wanted<'a> {
    /// The query.
    pub placed: &'a SubmittedQuery,
    /// It runs on when nobody watches.
    pub standing: bool,
    /// For how long it is watched.
    pub span: Option<Duration>,
    /// How many of the monitor's nanoseconds make one instant of what is shown.
    pub instant_ns: i64,
}

/// The answer that a monitor describes.
///
/// # Errors
/// When it describes none.
pub fn answer(placed: &SubmittedQuery, raw: bool) -> Result<Answer, Failure> {
    let answer = arrow::answer_of(&placed.schema).map_err(|why| {
        Failure::world(format_args!(
            "query `{}` is not told as weir tells one: {why}",
            placed.name
        ))
    })?;
    Ok(Answer { raw, ..answer })
}

/// Says that a query stands, and how it ends.
pub fn say_that_stands(placed: &SubmittedQuery) {
    let name = &placed.name;
    output::say(format_args!(
        "weir: `{name}` stands; `weir fleet cancel {name}` ends it"
    ));
}

/// Shows a query's results in `sink` until it ends, a signal comes, the time is over, or nobody
/// reads them. A query that is not standing ends soon after its last watcher has gone.
///
/// # Errors
/// When the sink fails, or the connection is lost and the query with it; what came before is shown.
pub fn show(
    client: &mut Client,
    wanted: &Wanted,
    answer: &Answer,
    sink: Box<dyn Sink>,
    stop: &Stop,
) -> Result<Ending, Failure> {
    let mut showing = Showing {
        answer,
        held: (answer.shape == Shape::Relation).then(|| Held::new(answer)),
        sink,
        note: Note::default(),
        missed: Missed::default(),
        torn: false,
        instant_ns: wanted.instant_ns,
        flushed: Instant::now(),
    };
    let end = showing.watch(client, wanted, stop);
    let finished = showing.sink.finish();
    for remark in showing.sink.remarks() {
        output::say(format_args!("weir: {remark}"));
    }
    if let Some(sentence) = showing.note.sentence() {
        output::say(format_args!("weir: {sentence}"));
    }
    let end = end?;
    match finished {
        Err(SinkError::Closed { .. }) | Ok(()) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(match (end, &showing.note.ended) {
        (End::Signal(number), _) => Ending::Signal(number),
        (End::Ended, Some(why)) if why != ENDED_BY_CANCEL => {
            output::say(format_args!("weir: the query has ended: {why}"));
            Ending::Failed
        }
        _ => Ending::Done,
    })
}

/// The reason of an end that somebody wanted.
pub const ENDED_BY_CANCEL: &str = "cancelled";

/// Why nothing more is shown.
enum End {
    /// The query has ended.
    Ended,
    /// A signal came.
    Signal(i32),
    /// The time is over, or nobody reads.
    Enough,
}

struct Showing<'a> {
    answer: &'a Answer,
    /// What a relation holds.
    held: Option<Held>,
    sink: Box<dyn Sink>,
    /// All that is known of the answer's completeness.
    note: Note,
    /// The rows that did not come, on any connection.
    missed: Missed,
    /// An instant may be half there.
    torn: bool,
    instant_ns: i64,
    flushed: Instant,
}

impl Showing<'_> {
    /// Watches until the end, through lost connections if the query stands.
    fn watch(&mut self, client: &mut Client, wanted: &Wanted, stop: &Stop) -> Result<End, Failure> {
        let until = wanted.span.map(|span| Instant::now() + span);
        let mut wait = RETRY.0;
        loop {
            let lost = match client.watch(&wanted.placed.name) {
                Ok(mut watch) => match self.follow(&mut watch, until, stop) {
                    Ok(end) => return Ok(end),
                    Err(Broken::Sink(SinkError::Closed { .. })) => return Ok(End::Enough),
                    Err(Broken::Sink(error)) => return Err(error.into()),
                    Err(Broken::Odd(why)) => return Err(Failure::world(why)),
                    Err(Broken::Wire(error)) => {
                        wait = RETRY.0;
                        error
                    }
                },
                Err(error) => error,
            };
            let passing = matches!(
                lost,
                WireError::Broken { .. } | WireError::Unreachable { .. }
            );
            if !passing || !wanted.standing {
                return Err(self.lost(lost, wanted));
            }
            output::say(format_args!("weir: {lost}; the query stands, trying again"));
            if let Some(end) = pause(wait, until, stop) {
                return Ok(end);
            }
            wait = (wait * 2).min(RETRY.1);
        }
    }

    /// What a lost connection means to whoever reads the answer.
    fn lost(&self, error: WireError, wanted: &Wanted) -> Failure {
        if wanted.standing {
            return error.into();
        }
        match self.note.at {
            Some(at) => Failure::world(format_args!(
                "{error}; the answer is complete up to {} and lacks what came later",
                weir_sink::time::timestamp(at)
            )),
            None => error.into(),
        }
    }

    /// Shows what comes on one connection.
    fn follow(
        &mut self,
        watch: &mut Watch,
        until: Option<Instant>,
        stop: &Stop,
    ) -> Result<End, Broken> {
        loop {
            if let Some(number) = stop.signal() {
                return Ok(End::Signal(number));
            }
            let over = until.is_some_and(|until| Instant::now() >= until);
            if over || stop.is_abandoned() {
                return Ok(End::Enough);
            }
            match watch.next(PATIENCE).map_err(Broken::Wire)? {
                WatchEvent::Update(shown) => self.take(&shown)?,
                WatchEvent::Timeout => {}
                WatchEvent::Ended => return Ok(End::Ended),
            }
            if !self.torn && self.flushed.elapsed() >= FLUSH_EVERY {
                self.sink.flush().map_err(Broken::Sink)?;
                self.flushed = Instant::now();
            }
        }
    }

    /// Shows rows and keeps what goes with them.
    fn take(&mut self, shown: &ResultUpdate) -> Result<(), Broken> {
        let note = Note::of(&shown.note);
        let at = note.at.or(self.note.at).unwrap_or(0);
        if let (Some(held), Some(rows)) = (&mut self.held, note.reset) {
            held.reset(rows);
        }
        self.torn = (self.torn || shown.batch.num_rows() > 0) && !note.whole;
        let begins = note.reset.is_some();
        self.missed.take(&note, shown.batch.num_rows() as u64);
        self.note = std::mem::take(&mut self.note).then(note);
        self.note.skipped = self.note.skipped.max(Some(self.missed.rows()));
        if shown.batch.num_rows() == 0 && !begins {
            return Ok(());
        }
        let batch = arrow::batch_of(self.answer, &shown.batch).map_err(Broken::Odd)?;
        let batch = match &mut self.held {
            Some(held) => held.take(batch, at),
            None => Some(batch),
        };
        match batch {
            Some(mut batch) => {
                if self.instant_ns != 1 {
                    let instants = batch.ts.iter().map(|ts| ts.div_euclid(self.instant_ns));
                    batch.ts = instants.collect();
                }
                self.sink.write(&batch).map_err(Broken::Sink)
            }
            None => Ok(()),
        }
    }
}

/// Why showing stopped.
enum Broken {
    Wire(WireError),
    Sink(SinkError),
    /// What came is not what was described.
    Odd(String),
}

/// Waits, unless it is over.
fn pause(wait: Duration, until: Option<Instant>, stop: &Stop) -> Option<End> {
    let left = until.map_or(wait, |until| {
        until.saturating_duration_since(Instant::now())
    });
    if !stop.wait(wait.min(left)) {
        return Some(stop.signal().map_or(End::Enough, End::Signal));
    }
    (left <= wait && until.is_some()).then_some(End::Enough)
}
