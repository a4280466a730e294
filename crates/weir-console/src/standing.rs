//! [`StandingQueries`]: one process for all subscriptions to the same live query.
//!
//! A [`StandingQuery`] keeps what a new or slow subscriber needs: the state of the relation, or the
//! most recent rows of the stream. There is no queue per subscriber, so a slow one costs no memory
//! and does not delay others; a frame is made from the current state when it is sent.
//!
//! A recording waits for its subscriber instead of leaving out rows, so each subscription to a
//! recording has a process of its own.
//!
//! Live queries of requests run in the process that reads the source for all of them
//! ([`crate::shared_source`]), others in a process of their own. A query that was started by
//! `POST /api/v1/queries` runs without subscribers until it is ended.

use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use arrow_ipc::reader::StreamReader;
use tokio::sync::Notify;
use weir_model::{Batch, Shape};
use weir_sink::view::deltas;
use weir_sink::{RelationView, ResultSchema, arrow};

use crate::frame::{self, FrameHeader, SNAPSHOT, TRUNCATED};
use crate::program::{self, Program, ProgramError, ResultSource};
use crate::shared_source::{ChunkReader, SharedSource, SourceEnd, SourceRequest};

mod description;
mod reading;

pub use description::QueryDescription;
use reading::{CountedReader, read_messages};

/// The maximum number of rows of a frame, and of the most recent rows of a stream.
pub const ROWS_MAX: usize = 20_000;

/// The maximum memory of a relation in bytes.
const VIEW_BYTES_MAX: usize = 64 << 20;

/// How long a query without subscribers runs, so that a tab that reconnects resumes it.
const LINGER: Duration = Duration::from_secs(15);

/// All standing queries.
pub struct StandingQueries {
    program: Program,
    source: Arc<SharedSource>,
    queries_max: usize,
    /// The live queries by their text.
    shared: Mutex<HashMap<String, Arc<StandingQuery>>>,
    /// All queries that run.
    all: Mutex<Vec<Weak<StandingQuery>>>,
    /// Those that run without subscribers, and those that have failed since.
    kept: Mutex<Vec<Arc<StandingQuery>>>,
    queries_ever: AtomicU64,
}

/// A query that runs.
pub struct StandingQuery {
    id: u64,
    text: String,
    source: ResultSource,
    name: Option<String>,
    started: SystemTime,
    state: Mutex<State>,
    /// Signalled when rows of a recording have been sent.
    sent: Condvar,
    /// The query is no longer needed.
    ended: AtomicBool,
}

struct State {
    answer: Option<Arc<ResultSchema>>,
    view: RelationView,
    /// Recent rows of a stream, and the number of those before and up to them.
    rows: VecDeque<Batch>,
    first_row: u64,
    next_row: u64,
    /// The number of states so far.
    version: u64,
    /// For a recording: rows up to this one were sent.
    sent_rows: u64,
    waits: bool,
    end: Option<QueryEnd>,
    subscribers: Vec<Weak<Notify>>,
    runner: Option<Runner>,
    bytes: u64,
}

/// What runs a query.
enum Runner {
    /// A process of its own.
    Process(u32),
    /// The process that reads the source for all queries, over this connection.
    Shared(UnixStream),
}

/// How a query ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryEnd {
    /// `end`: the input has ended; `query`: the query is incorrect; `failed`: anything else.
    pub reason: &'static str,
    /// What the process printed.
    pub message: String,
}

/// A position in the result of a query. Clones of the query are shared, positions are not.
pub struct Cursor {
    query: Arc<StandingQuery>,
    queries: Arc<StandingQueries>,
    version: u64,
    row: u64,
    sequence: u64,
}

impl StandingQueries {
    /// No queries; at most `queries_max` run at a time.
    pub fn new(program: Program, queries_max: usize) -> StandingQueries {
        StandingQueries {
            source: SharedSource::new(program.clone()),
            program,
            queries_max,
            shared: Mutex::default(),
            all: Mutex::default(),
            kept: Mutex::default(),
            queries_ever: AtomicU64::new(1),
        }
    }

    /// The process that reads the live source.
    pub fn shared_source(&self) -> &Arc<SharedSource> {
        &self.source
    }

    /// The number of queries that run.
    pub fn running(&self) -> usize {
        self.all_running().len()
    }

    fn all_running(&self) -> Vec<Arc<StandingQuery>> {
        let mut all = lock(&self.all);
        let running = |query: &Weak<StandingQuery>| {
            query
                .upgrade()
                .filter(|query| lock(&query.state).end.is_none())
        };
        let found: Vec<_> = all.iter().filter_map(running).collect();
        all.retain(|query| running(query).is_some());
        found
    }

    /// Every query that runs, and the standing ones that have failed.
    pub fn list(&self) -> Vec<QueryDescription> {
        let kept = lock(&self.kept).clone();
        let is_other = |query: &Arc<StandingQuery>| !kept.iter().any(|k| Arc::ptr_eq(k, query));
        let mut others = self.all_running();
        others.retain(is_other);
        let describe = |query: &Arc<StandingQuery>, is_standing| query.describe(is_standing);
        let kept = kept.iter().map(|query| describe(query, true));
        let mut list: Vec<_> = kept
            .chain(others.iter().map(|query| describe(query, false)))
            .collect();
        list.sort_by_key(|query| query.id);
        list
    }

    /// Ends a query by its number; false if there is none.
    pub fn end_by_id(&self, id: u64) -> bool {
        let mut kept = lock(&self.kept);
        let was_kept = kept.iter().any(|query| query.id == id);
        let of_kept = kept.iter().find(|query| query.id == id).cloned();
        kept.retain(|query| query.id != id);
        drop(kept);
        let running = self.all_running().into_iter().find(|query| query.id == id);
        let found = running.or(of_kept);
        if let Some(query) = &found {
            query.end();
        }
        was_kept || found.is_some()
    }

    /// Starts a live query that runs without subscribers until it is ended.
    ///
    /// # Errors
    /// As [`StandingQueries::subscribe`], and when the name is in use.
    pub fn keep(&self, name: Option<String>, text: &str) -> Result<QueryDescription, ProgramError> {
        let refused = |why: String| Err(ProgramError::Refused(why));
        if !self.program.live {
            return refused("a query of a recording ends; only live queries are standing".into());
        }
        let mut kept = lock(&self.kept);
        if name.is_some() && kept.iter().any(|query| query.name == name) {
            let name = name.unwrap_or_default();
            return refused(format!(
                "a standing query is named {name} already; end it first"
            ));
        }
        let query = self.start(&ResultSource::Own, name, text)?;
        kept.push(query.clone());
        lock(&self.shared).insert(text.to_owned(), query.clone());
        Ok(query.describe(true))
    }

    fn start(
        &self,
        source: &ResultSource,
        name: Option<String>,
        text: &str,
    ) -> Result<Arc<StandingQuery>, ProgramError> {
        if self.running() >= self.queries_max {
            let max = self.queries_max;
            let message = format!(
                "{max} queries run already; close a tab, or start weir console with a higher \
                 --queries-max"
            );
            return Err(ProgramError::Failed(message));
        }
        let id = self.queries_ever.fetch_add(1, Ordering::Relaxed);
        let query = StandingQuery {
            id,
            text: text.to_owned(),
            source: source.clone(),
            name,
            started: SystemTime::now(),
            state: Mutex::new(State::new(!source.is_live(&self.program))),
            sent: Condvar::new(),
            ended: AtomicBool::new(false),
        };
        let query = Arc::new(query);
        query.start(&self.program, &self.source)?;
        lock(&self.all).push(Arc::downgrade(&query));
        Ok(query)
    }

    /// Subscribes to the result of `text`; `changed` is notified when there is more of it.
    ///
    /// # Errors
    /// When too many queries run, or the process cannot be started.
    pub fn subscribe(
        self: &Arc<Self>,
        source: &ResultSource,
        text: &str,
        changed: &Arc<Notify>,
    ) -> Result<Cursor, ProgramError> {
        let mut shared = lock(&self.shared);
        shared.retain(|_, query| !query.has_ended());
        let live = source.is_live(&self.program);
        let query = match shared.get(text).filter(|_| live) {
            Some(query) => query.clone(),
            None => {
                let query = self.start(source, None, text)?;
                if live {
                    shared.insert(text.to_owned(), query.clone());
                }
                query
            }
        };
        lock(&query.state).subscribers.push(Arc::downgrade(changed));
        changed.notify_one();
        Ok(Cursor {
            query,
            queries: self.clone(),
            version: 0,
            row: 0,
            sequence: 0,
        })
    }

    /// Ends a query that has had no subscriber for [`LINGER`].
    fn left(self: &Arc<Self>, query: &Arc<StandingQuery>) {
        let linger = match query.source.is_live(&self.program) {
            true => LINGER,
            false => Duration::ZERO,
        };
        if query.has_subscribers() || self.is_kept(query) {
            return;
        }
        let (queries, query) = (self.clone(), query.clone());
        let check = async move {
            tokio::time::sleep(linger).await;
            let mut shared = lock(&queries.shared);
            if !query.has_subscribers() && !queries.is_kept(&query) {
                shared.retain(|_, other| !Arc::ptr_eq(other, &query));
                query.end();
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(check)),
            Err(_) => self.end(),
        }
    }

    fn is_kept(&self, query: &Arc<StandingQuery>) -> bool {
        lock(&self.kept).iter().any(|kept| Arc::ptr_eq(kept, query))
    }

    /// Ends all queries.
    pub fn end(&self) {
        let all = lock(&self.all);
        all.iter().filter_map(Weak::upgrade).for_each(|q| q.end());
    }
}

impl StandingQuery {
    /// Starts to read the result, in a thread of its own.
    fn start(
        self: &Arc<Self>,
        program: &Program,
        shared: &Arc<SharedSource>,
    ) -> Result<(), ProgramError> {
        let (reader, program, shared) = (self.clone(), program.clone(), shared.clone());
        let run = move || {
            let end = reader.run(&program, &shared);
            let mut state = lock(&reader.state);
            state.end = Some(end);
            state.runner = None;
            state.notify();
        };
        let thread = std::thread::Builder::new().name("weir-standing".into());
        let started = thread.spawn(run);
        started.map_err(|e| ProgramError::Failed(format!("weir: {e}")))?;
        Ok(())
    }

    /// Reads the result up to its end.
    fn run(&self, program: &Program, shared: &SharedSource) -> QueryEnd {
        let is_recent = self.source == ResultSource::Recent;
        if is_recent || program.is_shared() && self.source == ResultSource::Own {
            match (self.run_shared(shared), is_recent) {
                (Ok(end), _) if end.reason != "unsuited" => return QueryEnd::of(end),
                (Ok(end), true) => {
                    let message = format!("the recent requests cannot answer it: {}", end.message);
                    return QueryEnd::new("failed", message);
                }
                (Err(message), true) => return QueryEnd::new("failed", message),
                // A process of its own reports why the host cannot be observed.
                (_, false) => {}
            }
        }
        let mut command = program.query(&self.source, &["--format", "arrow"], &self.text);
        match command.spawn() {
            Ok(child) => self.run_process(child),
            Err(error) => QueryEnd::new("failed", format!("weir: {error}")),
        }
    }

    /// Sets what runs the query; false if it has been ended meanwhile.
    fn runs_in(&self, runner: Runner) -> bool {
        let mut state = lock(&self.state);
        state.runner = Some(runner);
        !self.ended.load(Ordering::Relaxed)
    }

    fn run_shared(&self, shared: &SharedSource) -> Result<SourceEnd, String> {
        let request = SourceRequest::Query {
            q: self.text.clone(),
            recent: self.source == ResultSource::Recent,
            format: "arrow".to_owned(),
            last: false,
        };
        let reader = shared.open(&request).map_err(|error| match error {
            ProgramError::Failed(message) | ProgramError::Refused(message) => message,
        })?;
        let closer = reader.closer().map_err(|e| e.to_string())?;
        if !self.runs_in(Runner::Shared(closer)) {
            return Ok(SourceEnd::new("end", ""));
        }
        let mut reader: ChunkReader = reader;
        let read = self.read(&mut reader);
        match (reader.end(), read) {
            (Some(end), _) => Ok(end.clone()),
            (None, Ok(())) => Ok(SourceEnd::new("end", "")),
            // Rows that were shown would be repeated.
            (None, Err(message)) => Ok(SourceEnd::new("failed", message)),
        }
    }

    fn run_process(&self, mut child: Child) -> QueryEnd {
        let messages = child.stderr.take().map(read_messages);
        let output = child.stdout.take().expect("it is a pipe");
        let read = match self.runs_in(Runner::Process(child.id())) {
            true => self.read(output),
            false => Ok(()),
        };
        if read.is_err() || self.ended.load(Ordering::Relaxed) {
            program::terminate(child.id());
        }
        let status = child.wait();
        let messages = messages.and_then(|thread| thread.join().ok());
        let messages = messages.unwrap_or_default();
        match (status, read) {
            (Ok(status), _) if !status.success() => match program::error(status, &messages) {
                ProgramError::Refused(message) => QueryEnd::new("query", message),
                ProgramError::Failed(message) => QueryEnd::new("failed", message),
            },
            (Err(error), _) => QueryEnd::new("failed", error.to_string()),
            (Ok(_), Err(message)) => QueryEnd::new("failed", message),
            (Ok(_), Ok(())) => {
                QueryEnd::new("end", String::from_utf8_lossy(&messages).into_owned())
            }
        }
    }

    fn read(&self, output: impl Read) -> Result<(), String> {
        let counted = CountedReader {
            output,
            count: |size| lock(&self.state).bytes += size as u64,
        };
        let reader = StreamReader::try_new(counted, None).map_err(|e| e.to_string())?;
        let answer = Arc::new(arrow::answer_of(&reader.schema())?);
        {
            let mut state = lock(&self.state);
            state.answer = Some(answer.clone());
            state.notify();
        }
        for rows in reader {
            let rows = rows.map_err(|e| e.to_string())?;
            let batch = arrow::batch_of(&answer, &rows)?;
            if !self.apply(&answer, batch) {
                break;
            }
        }
        Ok(())
    }

    /// Adds rows; false if the query is no longer needed.
    fn apply(&self, answer: &ResultSchema, batch: Batch) -> bool {
        let mut state = lock(&self.state);
        match answer.shape {
            Shape::Relation => state.view.apply(&batch),
            Shape::Stream => {
                let mut start = 0;
                while start < batch.len() {
                    let count = (batch.len() - start).min(ROWS_MAX / 4);
                    state = self.wait_for_room(state, count);
                    state.push(batch.slice(start, count));
                    start += count;
                }
            }
        }
        state.version += 1;
        state.notify();
        !self.ended.load(Ordering::Relaxed)
    }

    /// Waits until the rows of a recording have been sent.
    fn wait_for_room<'s>(
        &self,
        mut state: MutexGuard<'s, State>,
        count: usize,
    ) -> MutexGuard<'s, State> {
        let is_full = |s: &State| s.next_row - s.sent_rows + count as u64 > ROWS_MAX as u64;
        while state.waits && is_full(&state) && !self.ended.load(Ordering::Relaxed) {
            state.version += 1;
            state.notify();
            let waited = self.sent.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let state = lock(&self.state);
        match &state.runner {
            Some(Runner::Process(pid)) => program::terminate(*pid),
            // The reader reports the end of the connection.
            Some(Runner::Shared(stream)) => drop(stream.shutdown(Shutdown::Both)),
            None => {}
        }
        self.sent.notify_all();
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || lock(&self.state).end.is_some()
    }

    fn has_subscribers(&self) -> bool {
        let mut state = lock(&self.state);
        state.subscribers.retain(|s| s.strong_count() > 0);
        !state.subscribers.is_empty()
    }
}

impl State {
    /// Nothing yet; a result that `waits` omits no rows.
    fn new(waits: bool) -> State {
        State {
            answer: None,
            view: RelationView::new(VIEW_BYTES_MAX),
            rows: VecDeque::new(),
            first_row: 0,
            next_row: 0,
            version: 0,
            sent_rows: 0,
            waits,
            end: None,
            subscribers: Vec::new(),
            runner: None,
            bytes: 0,
        }
    }

    fn push(&mut self, batch: Batch) {
        self.next_row += batch.len() as u64;
        self.rows.push_back(batch);
        while self.next_row - self.first_row > ROWS_MAX as u64 {
            let oldest = self.rows.pop_front().expect("there are rows");
            self.first_row += oldest.len() as u64;
        }
    }

    fn notify(&mut self) {
        self.subscribers.retain(|subscriber| {
            let subscriber = subscriber.upgrade();
            subscriber.inspect(|s| s.notify_one()).is_some()
        });
    }

    /// The rows of the stream from number `row` on.
    fn rows_since(&self, row: u64) -> Vec<Batch> {
        let mut before = self.first_row;
        let mut since = Vec::new();
        for batch in &self.rows {
            let skip = row.saturating_sub(before).min(batch.len() as u64) as usize;
            if skip < batch.len() {
                since.push(batch.slice(skip, batch.len() - skip));
            }
            before += batch.len() as u64;
        }
        since
    }
}

impl Cursor {
    /// Whether there is something to send.
    pub fn is_behind(&self) -> bool {
        let state = lock(&self.query.state);
        state.answer.is_some() && (state.version > self.version || self.sequence == 0)
    }

    /// The end of the query, once everything was sent.
    pub fn end(&self) -> Option<QueryEnd> {
        let state = lock(&self.query.state);
        let is_sent = state.answer.is_none() || self.sequence > 0 && state.version == self.version;
        state.end.clone().filter(|_| is_sent)
    }

    /// The next frame: the state of the relation, or the rows since the last frame.
    pub fn frame(&mut self, subscription: u32) -> Option<Vec<u8>> {
        let mut state = lock(&self.query.state);
        let answer = state.answer.clone()?;
        let is_first = self.sequence == 0;
        self.sequence += 1;
        let mut header = FrameHeader {
            subscription,
            flags: if is_first { SNAPSHOT } else { 0 },
            sequence: self.sequence,
            ..FrameHeader::default()
        };
        let frame = match answer.shape {
            Shape::Relation => {
                if !is_first {
                    header.skipped = state.version.saturating_sub(self.version + 1);
                }
                header.flags |= SNAPSHOT;
                header.rows = u64::try_from(state.view.len()).unwrap_or(0);
                let rows = state.view.first(ROWS_MAX, |a, b| answer.compare(a, b));
                if rows.iter().map(|row| row.1).sum::<i64>() < state.view.len()
                    || state.view.omitted() > 0
                {
                    header.flags |= TRUNCATED;
                }
                let batch = deltas(&answer.schema, state.view.instant().max(0), rows);
                frame::encode(header, &answer, &[batch])
            }
            Shape::Stream => {
                header.rows = state.next_row;
                if !is_first {
                    header.skipped = state.first_row.saturating_sub(self.row);
                }
                let since = state.rows_since(self.row);
                self.row = state.next_row;
                state.sent_rows = state.next_row;
                self.query.sent.notify_all();
                frame::encode(header, &answer, &since)
            }
        };
        self.version = state.version;
        Some(frame)
    }

    /// The last sequence number that was sent.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Removes the subscription with `changed`.
    pub fn leave(self, changed: &Arc<Notify>) {
        let mut state = lock(&self.query.state);
        let own = Arc::downgrade(changed);
        let this = state.subscribers.iter().position(|s| s.ptr_eq(&own));
        if let Some(this) = this {
            state.subscribers.swap_remove(this);
        }
        drop(state);
        self.queries.left(&self.query);
    }
}

impl QueryEnd {
    fn new(reason: &'static str, message: impl Into<String>) -> QueryEnd {
        QueryEnd {
            reason,
            message: message.into().trim_end().to_owned(),
        }
    }

    fn of(end: SourceEnd) -> QueryEnd {
        let reason = match &*end.reason {
            "end" => "end",
            "query" => "query",
            _ => "failed",
        };
        QueryEnd::new(reason, end.message)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
