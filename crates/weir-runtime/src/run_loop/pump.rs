//! [`Pump`]: moves rows and watermarks from the taps through the engine to the sinks.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use arrow_buffer::ScalarBuffer;
use weir_model::{Batch, Folded, Nanos};
use weir_query::Plan;
use weir_query::engine::{Engine, EngineOutput, QueryId};
use weir_query::function::EvalError;
use weir_sink::{Incomplete, Sink, SinkError, Watermark};
use weir_tap::{EventCount, TapError};

use super::counters::{CounterReading, Counters};
use super::feed::{Message, TapCounts};
use super::merge::Merge;
use super::progress::{Progress, RunProgress};
use super::shows::Shows;
use super::stop::{Stop, wall_clock};
use super::summary::MISSED;
use super::{Change, LoopOptions, OWN_STREAM, Route, RunReport, Show};
use crate::failure::Failure;

/// How long the loop sleeps when no tap has sent a message.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How often stream `weir` reports changes.
const OWN_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of waiting batches of a tap that is ahead of the others; then no more are
/// received from it.
const WAITING_MAX: usize = 16;

/// Maximum number of messages received from one tap before the next one is polled.
const TURN: usize = 16;

/// The state of the loop.
pub struct Pump<'a> {
    engine: Engine,
    queries: Vec<Query>,
    shows: Shows,
    options: LoopOptions,
    stop: &'a Stop,
    receivers: Vec<TapReceiver>,
    sources: Vec<Source>,
    counters: Counters,
    own_counters_at: Instant,
    /// The latest instant that any input has reported, in the engine's unit.
    latest: i64,
    /// The highest watermark of any input.
    latest_over: i64,
    progress: Progress,
    rows_in: u64,
    failed: Vec<(QueryId, EvalError)>,
    tap_error: Option<TapError>,
    /// The sinks accept no more.
    closed: bool,
    /// The first instant that any input has reported.
    begin: Option<i64>,
    /// The watermark that the sinks received last.
    watermark: Option<Watermark>,
    /// Remarks for readers of the output, besides those of inputs and sinks.
    remarks: Vec<String>,
}

/// A query of the engine, in the order of the sinks.
pub struct Query {
    /// `None` once it has ended; the position can be used again.
    id: Option<QueryId>,
    /// Its name for [`Change`].
    name: Option<u64>,
    last_instant_open: bool,
}

/// The state of one tap in the loop.
struct TapReceiver {
    arrivals: Receiver<Message>,
    live: bool,
    subscriptions: Vec<Subscription>,
    account: TapCounts,
    last_message: Instant,
    ended: bool,
}

/// One demand of a tap and its source.
struct Subscription {
    route: Route,
    source: usize,
    number: usize,
}

/// One source of the engine.
struct Source {
    name: String,
    taps: usize,
    merge: Merge,
}

impl Query {
    /// The properties of a show that the loop needs.
    pub fn of(show: &Show) -> Query {
        Query {
            id: Some(show.id),
            name: show.name,
            last_instant_open: show.last_instant_open,
        }
    }
}

impl<'a> Pump<'a> {
    pub fn new(
        engine: Engine,
        queries: Vec<Query>,
        shows: Shows,
        options: LoopOptions,
        stop: &'a Stop,
    ) -> Pump<'a> {
        Pump {
            engine,
            queries,
            shows,
            progress: Progress::new(options.progress.clone()),
            options,
            stop,
            receivers: Vec::new(),
            sources: Vec::new(),
            counters: Counters::default(),
            own_counters_at: Instant::now(),
            latest: i64::MIN,
            latest_over: i64::MIN,
            rows_in: 0,
            failed: Vec::new(),
            tap_error: None,
            closed: false,
            begin: None,
            watermark: None,
            remarks: Vec::new(),
        }
    }

    /// Adds a tap, before [`Pump::run`].
    pub fn listen_to(&mut self, arrivals: Receiver<Message>, live: bool, routes: Vec<Route>) {
        let subscriptions = routes
            .into_iter()
            .map(|route| self.subscription(route))
            .collect();
        self.receivers.push(TapReceiver {
            arrivals,
            live,
            subscriptions,
            account: TapCounts::default(),
            last_message: Instant::now(),
            ended: false,
        });
    }

    fn subscription(&mut self, route: Route) -> Subscription {
        let known = self.sources.iter().position(|s| s.name == route.source);
        let source = known.unwrap_or_else(|| {
            self.sources.push(Source {
                name: route.source.clone(),
                taps: 0,
                merge: Merge::new(0),
            });
            self.sources.len() - 1
        });
        let entry = &mut self.sources[source];
        entry.taps += 1;
        entry.merge = Merge::new(entry.taps);
        Subscription {
            number: entry.taps - 1,
            source,
            route,
        }
    }

    /// Runs until the taps have ended or the sinks accept no more, and processes all received
    /// messages.
    pub fn run(&mut self) {
        // Stream `weir` alone starts now; with inputs, their first report sets the start.
        if self.begins_with_inputs() && self.receivers.is_empty() {
            self.begins(wall_clock().div_euclid(self.options.instant_ns));
        }
        loop {
            if self.stop.signal().is_some() {
                self.stop.live_until(wall_clock());
            }
            self.make_changes();
            let last_message = self.listen();
            self.exclude_idle();
            self.move_on();
            self.push_own_counters(false);
            self.step(Engine::step);
            self.show_progress();
            self.closed |= self.shows.ended();
            if self.closed || self.is_over() {
                break;
            }
            if !last_message {
                std::thread::park_timeout(POLL_INTERVAL);
            }
        }
        if !self.closed {
            self.push_own_counters(true);
            match self.options.whole.take() {
                Some(plan) => self.finish_whole(&plan),
                None => self.step(Engine::finish),
            }
        }
        self.progress.clear();
    }

    /// Ends the inputs and shows the slide that is open then.
    fn finish_whole(&mut self, plan: &Plan) {
        let live = self.receivers.iter().any(|e| e.live) || self.receivers.is_empty();
        let ended = match live {
            true => self.stop.live_end().min(wall_clock()),
            false => self.latest,
        };
        // An input may have ended before it reported anything.
        self.begins(ended.max(0));
        self.step(Engine::finish);
        let at = ended.max(self.engine.now());
        let Some(open) = plan.open_slide(at) else {
            return;
        };
        let begin = self.begin.unwrap_or(at);
        let slide = Incomplete {
            covers: at - open.after.max(begin).min(at),
            slide: open.end - open.after,
        };
        self.closed |= !self.shows.incomplete(slide);
        self.step(|engine, emit| engine.finish_at(open.end, emit));
        let span = |ns: i64| Duration::from_nanos(ns.max(0) as u64);
        self.remarks.push(format!(
            "the last slide is incomplete: it covers {:.3?} of {:?}",
            span(slide.covers),
            span(slide.slide)
        ));
    }

    /// Whether results begin with the first instant of the inputs, and not with the first row.
    fn begins_with_inputs(&self) -> bool {
        self.options.whole.is_some() || self.options.watermarks
    }

    /// Records the first instant of all.
    fn begins(&mut self, at: i64) {
        if self.begin.is_none() && at < i64::MAX {
            self.begin = Some(at);
            self.engine.begin(at);
        }
    }

    /// True when all taps have ended; without taps, stream `weir` continues until it is stopped.
    fn is_over(&self) -> bool {
        match self.receivers.is_empty() && self.options.own_stream {
            true => wall_clock() > self.stop.live_end(),
            false => self.receivers.iter().all(|e| e.ended),
        }
    }

    /// Completes all output and returns the report.
    pub fn report(self) -> Result<RunReport, Failure> {
        let mut remarks = match self.shows.finish() {
            Ok(remarks) => remarks,
            Err(SinkError::Closed { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        if let Some(error) = self.tap_error {
            return Err(error.into());
        }
        remarks.extend(self.remarks);
        remarks.extend(self.receivers.into_iter().flat_map(|e| e.account.messages));
        let shared = self.options.counts.lock().expect("no panic while held");
        let mut counts = shared.clone();
        counts.extend(
            self.engine
                .counts()
                .sources
                .iter()
                .map(|source| EventCount::of("events_lost", Some("late"), source.rows_late as i64)),
        );
        Ok(RunReport {
            counts,
            engine: self.engine.counts(),
            failed: self.failed,
            remarks,
            signal: self.stop.signal(),
        })
    }

    /// Receives the messages of the taps; false if there were none.
    fn listen(&mut self) -> bool {
        let mut last_message = false;
        let slowest = self
            .receivers
            .iter()
            .filter(|e| !e.ended)
            .map(|e| self.reached(e))
            .min();
        for i in 0..self.receivers.len() {
            for _ in 0..TURN {
                let receiver = &self.receivers[i];
                let ahead =
                    Some(self.reached(receiver)) > slowest && self.waiting(receiver) >= WAITING_MAX;
                if receiver.ended || ahead {
                    break;
                }
                match receiver.arrivals.try_recv() {
                    Ok(word) => self.take(i, word),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => self.end(i),
                }
                last_message = true;
            }
        }
        last_message
    }

    fn reached(&self, receiver: &TapReceiver) -> i64 {
        let subscriptions = receiver.subscriptions.iter();
        let reached = subscriptions.map(|l| self.sources[l.source].merge.watermark_of(l.number));
        reached.min().unwrap_or(i64::MAX)
    }

    fn waiting(&self, receiver: &TapReceiver) -> usize {
        let subscriptions = receiver.subscriptions.iter();
        let waiting = subscriptions.map(|l| self.sources[l.source].merge.waiting(l.number));
        waiting.max().unwrap_or(0)
    }

    fn take(&mut self, receiver: usize, message: Message) {
        self.receivers[receiver].last_message = Instant::now();
        if self.begins_with_inputs() {
            match &message {
                Message::Rows { batch, .. } => {
                    let first = batch.ts.first().copied();
                    self.begins(first.unwrap_or(i64::MAX));
                }
                Message::Reached(at) => self.begins(*at),
                _ => {}
            }
        }
        match message {
            Message::Rows { demand, batch } => self.take_rows(receiver, demand, &batch),
            Message::Folded { demand, folded } => self.take_folded(receiver, demand, &folded),
            Message::Reached(at_ns) => {
                for subscription in &self.receivers[receiver].subscriptions {
                    let at = last_instant(at_ns, subscription.route.instant_ns);
                    self.sources[subscription.source]
                        .merge
                        .reach(subscription.number, at);
                    if at < i64::MAX {
                        self.latest = self.latest.max(at);
                        self.latest_over = self.latest_over.max(at);
                    }
                }
            }
            Message::Counted(account) => {
                self.receivers[receiver].account = account;
                let counts = self
                    .receivers
                    .iter()
                    .flat_map(|e| e.account.counts.iter().copied());
                let mut shared = self.options.counts.lock().expect("no panic while held");
                *shared = counts.collect();
            }
            Message::Failed(error) => {
                self.tap_error = self.tap_error.take().or(Some(error));
                self.stop.abandon();
                self.end(receiver);
            }
            Message::End => self.end(receiver),
        }
    }

    fn take_rows(&mut self, receiver: usize, demand: usize, batch: &Batch) {
        self.rows_in += batch.len() as u64;
        if self.receivers[receiver].subscriptions.is_empty() {
            // Its rows are counted and have no destination; they advance the time.
            let last = batch.ts.last().copied().unwrap_or(i64::MIN);
            self.latest = self.latest.max(last.div_euclid(self.options.instant_ns));
        }
        for subscription in &self.receivers[receiver].subscriptions {
            let route = &subscription.route;
            if route.demand != demand {
                continue;
            }
            let mut rows = match &route.mapping {
                Some(mapping) => mapping.apply(batch),
                None => batch.clone(),
            };
            if route.instant_ns != 1 {
                let instants = rows.ts.iter().map(|ts| ts.div_euclid(route.instant_ns));
                rows.ts = ScalarBuffer::from(instants.collect::<Vec<i64>>());
            }
            self.latest = self.latest.max(rows.ts.last().copied().unwrap_or(i64::MIN));
            self.sources[subscription.source]
                .merge
                .push(subscription.number, rows);
        }
    }

    /// Groups wait in the engine until their interval has passed: this tap sent them before its
    /// watermark, and the source's watermark is not ahead of any of its taps.
    fn take_folded(&mut self, receiver: usize, demand: usize, folded: &Folded) {
        for subscription in &self.receivers[receiver].subscriptions {
            let route = &subscription.route;
            if route.demand == demand {
                assert_eq!(route.instant_ns, 1, "folds are asked for in nanoseconds");
                let source = &self.sources[subscription.source].name;
                self.engine.push_folded(source, folded.clone());
            }
        }
    }

    fn end(&mut self, receiver: usize) {
        self.receivers[receiver].ended = true;
        for subscription in &self.receivers[receiver].subscriptions {
            self.sources[subscription.source]
                .merge
                .reach(subscription.number, i64::MAX);
        }
    }

    /// Live sources that have been silent for too long do not delay the others; rows that they send
    /// later for this time are late, and counted.
    fn exclude_idle(&mut self) {
        let idle =
            |e: &TapReceiver| e.live && !e.ended && e.last_message.elapsed() >= self.options.idle;
        if self.receivers.len() < 2 || !self.receivers.iter().any(idle) {
            return;
        }
        let reached = |e: &TapReceiver| self.reached(e);
        let awake = self.receivers.iter().filter(|e| !idle(e) && !e.ended);
        // If all are silent, the others follow the one that is farthest ahead.
        let farthest = self
            .receivers
            .iter()
            .filter(|e| !e.ended)
            .map(reached)
            .max();
        let Some(reached) = awake.map(reached).min().or(farthest) else {
            return;
        };
        let idle: Vec<usize> = (0..self.receivers.len())
            .filter(|&i| idle(&self.receivers[i]))
            .collect();
        for subscription in idle
            .into_iter()
            .flat_map(|i| &self.receivers[i].subscriptions)
        {
            self.sources[subscription.source]
                .merge
                .reach(subscription.number, reached);
        }
    }

    /// Passes rows and watermarks to the engine.
    fn move_on(&mut self) {
        for source in &mut self.sources {
            let (name, engine) = (&source.name, &mut self.engine);
            source.merge.drain(|batch| engine.push(name, batch));
            match source.merge.reached() {
                i64::MAX => engine.close(name),
                i64::MIN => {}
                at => engine.heartbeat(name, at),
            }
        }
    }

    fn step(&mut self, go: impl FnOnce(&mut Engine, &mut dyn FnMut(EngineOutput))) {
        let open_from = self.open_from();
        let reported = self.failed.len();
        let (queries, shows, failed) = (&self.queries, &mut self.shows, &mut self.failed);
        let mut open = true;
        go(&mut self.engine, &mut |output| match output {
            EngineOutput::Rows { query, batch } => {
                let at = queries.iter().position(|q| q.id == Some(query));
                let sink = at.expect("the loop knows the engine's queries");
                let batch = match queries[sink].last_instant_open {
                    true => batch.slice(0, batch.ts.partition_point(|&ts| ts < open_from)),
                    false => batch,
                };
                open &= batch.is_empty() || shows.rows(sink, batch);
            }
            EngineOutput::Failed { query, error } => failed.push((query, error)),
        });
        open &= shows.whole();
        open &= self.send_failures(reported);
        open &= !self.options.watermarks || self.send_watermark();
        let failed = |id: QueryId| self.failed.iter().any(|(query, _)| *query == id);
        let mut running = self.queries.iter().filter_map(|q| q.id);
        self.closed |= !open || running.all(failed);
    }

    /// Reports the failures after the first `reported` to their sinks; false when the sinks have
    /// failed.
    fn send_failures(&mut self, reported: usize) -> bool {
        let mut open = true;
        for (query, error) in &self.failed[reported..] {
            let of = self.queries.iter().position(|q| q.id == Some(*query));
            open &= of.is_none_or(|sink| self.shows.failed(sink, error.to_string()));
        }
        open
    }

    /// Sends the watermark to the sinks if it has changed; false when the sinks have failed.
    fn send_watermark(&mut self) -> bool {
        let (at, Some(begin)) = (self.engine.now(), self.begin) else {
            return true;
        };
        let live = self.receivers.iter().filter(|receiver| receiver.live);
        let missed = live.map(|receiver| super::missed(&receiver.account.counts));
        let watermark = Watermark {
            begin,
            at,
            missed: missed.sum(),
        };
        if at == i64::MIN || self.watermark == Some(watermark) {
            return true;
        }
        self.watermark = Some(watermark);
        self.shows.advance(watermark)
    }

    /// Adds and ends queries as requested since the previous call.
    fn make_changes(&mut self) {
        let Some(changes) = self.options.changes.take() else {
            return;
        };
        for change in changes.try_iter() {
            match change {
                Change::Ask { name, plan, sink } => self.ask(name, &plan, sink),
                Change::End { name } => self.end_query(name),
            }
        }
        self.options.changes = Some(changes);
    }

    fn ask(&mut self, name: u64, plan: &Plan, sink: Box<dyn Sink>) {
        let query = Query {
            id: Some(self.engine.add(plan)),
            name: Some(name),
            last_instant_open: false,
        };
        let free = self.queries.iter().position(|q| q.id.is_none());
        let place = free.unwrap_or(self.queries.len());
        match free {
            Some(place) => self.queries[place] = query,
            None => self.queries.push(query),
        }
        self.closed |= !self.shows.exchange(place, Some(sink));
    }

    fn end_query(&mut self, name: u64) {
        let named = |q: &Query| q.id.is_some() && q.name == Some(name);
        let Some(place) = self.queries.iter().position(named) else {
            return;
        };
        let id = self.queries[place].id.take();
        self.engine.remove(id.expect("it was found by its id"));
        self.closed |= !self.shows.exchange(place, None);
    }

    /// The last instant of all sources, once they have ended without a watermark for it; before,
    /// the maximum.
    fn open_from(&self) -> i64 {
        match self.is_over() && self.latest_over < self.latest {
            true => self.latest,
            false => i64::MAX,
        }
    }

    /// Rows of stream `weir`, once a second and at the end.
    fn push_own_counters(&mut self, end: bool) {
        if !self.options.own_stream {
            return;
        }
        let now = self.own_instant();
        if end || self.own_counters_at.elapsed() >= OWN_EVERY {
            self.own_counters_at = Instant::now();
            let readings = self.readings();
            let rows = self.counters.changes(now, readings);
            self.engine.push(OWN_STREAM, rows);
        } else if now > i64::MIN {
            // The next rows may have this very instant.
            self.engine.heartbeat(OWN_STREAM, now - 1);
        }
    }

    /// The current instant of stream `weir`: the wall clock with a live tap, otherwise the position
    /// in the recordings.
    fn own_instant(&self) -> Nanos {
        let wall = wall_clock().div_euclid(self.options.instant_ns);
        match self.receivers.iter().all(|e| e.live) {
            true => wall.max(self.latest),
            // A recording without rows has no time of its own.
            false if self.latest == i64::MIN && self.is_over() => wall,
            false => self.latest,
        }
    }

    fn readings(&self) -> Vec<CounterReading> {
        let taps = self.receivers.iter().flat_map(|e| &e.account.counts);
        let mut readings = CounterReading::of_taps(taps);
        readings.extend(super::counters::engine_counts(&self.engine.counts()));
        readings.extend(super::counters::process_readings());
        let shown = self.shows.rows_taken();
        readings.push(CounterReading::new("sink", "events_out", shown));
        readings
    }

    fn show_progress(&mut self) {
        let (receivers, rows) = (&self.receivers, self.rows_in);
        self.progress.show(|| {
            let done: Vec<f64> = receivers.iter().filter_map(|e| e.account.done).collect();
            let counts = receivers.iter().flat_map(|e| &e.account.counts);
            let missed = counts.filter(|c| MISSED.contains(&c.counter));
            RunProgress {
                done: (!done.is_empty()).then(|| done.iter().sum::<f64>() / done.len() as f64),
                rows,
                missed: missed.map(|c| c.total).sum(),
            }
        });
    }
}

/// The last complete instant of the engine when the tap's watermark is `at_ns`.
fn last_instant(at_ns: Nanos, instant_ns: i64) -> i64 {
    match at_ns.checked_add(1) {
        Some(next) => next.div_euclid(instant_ns) - 1,
        None => i64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_over_when_its_last_nanosecond_is() {
        assert_eq!(last_instant(1_998, 1_000), 0);
        assert_eq!(last_instant(1_999, 1_000), 1);
        assert_eq!(last_instant(-1, 1_000), -1);
        assert_eq!(last_instant(7, 1), 7);
        assert_eq!(last_instant(Nanos::MAX, 1_000), i64::MAX);
    }
}
