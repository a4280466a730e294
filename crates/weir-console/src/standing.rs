//! [`StandingQueries`]: one process for all subscriptions to the same live query.
//!
//! A [`StandingQuery`] keeps what a new or slow subscriber needs: the state of the relation, or the
//! most recent rows of the stream. There is no queue per subscriber, so a slow one costs no memory
//! and does not delay others; a frame is made from the current state when it is sent.
//!
//! A recording waits for its subscriber instead of leaving out rows, so each subscription to a
//! recording has a process of its own.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arrow_ipc::reader::StreamReader;
use tokio::sync::Notify;
use weir_model::{Batch, Shape};
use weir_sink::view::deltas;
use weir_sink::{RelationView, ResultSchema, arrow};

use crate::frame::{self, FrameHeader, SNAPSHOT, TRUNCATED};
use crate::program::{self, Program, ProgramError};

/// The maximum number of rows of a frame, and of the most recent rows of a stream.
pub const ROWS_MAX: usize = 20_000;

/// The maximum memory of a relation in bytes.
const VIEW_BYTES_MAX: usize = 64 << 20;

/// How long a query without subscribers runs, so that a tab that reconnects resumes it.
const LINGER: Duration = Duration::from_secs(15);

/// All standing queries.
pub struct StandingQueries {
    program: Program,
    queries_max: usize,
    /// The live queries by their text.
    shared: Mutex<HashMap<String, Arc<StandingQuery>>>,
    /// All queries with a process.
    all: Mutex<Vec<Weak<StandingQuery>>>,
}

/// A query that runs.
pub struct StandingQuery {
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
    pid: u32,
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
            program,
            queries_max,
            shared: Mutex::default(),
            all: Mutex::default(),
        }
    }

    /// The number of queries that run.
    pub fn running(&self) -> usize {
        let mut all = lock(&self.all);
        all.retain(|query| {
            query
                .upgrade()
                .is_some_and(|q| lock(&q.state).end.is_none())
        });
        all.len()
    }

    /// Subscribes to the result of `text`; `changed` is notified when there is more of it.
    ///
    /// # Errors
    /// When too many queries run, or the process cannot be started.
    pub fn subscribe(
        self: &Arc<Self>,
        text: &str,
        changed: &Arc<Notify>,
    ) -> Result<Cursor, ProgramError> {
        let live = self.program.live;
        let mut shared = lock(&self.shared);
        shared.retain(|_, query| !query.has_ended());
        let query = match shared.get(text) {
            Some(query) => query.clone(),
            None => {
                if self.running() >= self.queries_max {
                    let max = self.queries_max;
                    let message = format!(
                        "{max} queries run already; close a tab, or start weir console with a \
                         higher --queries-max"
                    );
                    return Err(ProgramError::Failed(message));
                }
                let query = StandingQuery::start(&self.program, text)?;
                lock(&self.all).push(Arc::downgrade(&query));
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
        let linger = match self.program.live {
            true => LINGER,
            false => Duration::ZERO,
        };
        if query.has_subscribers() {
            return;
        }
        let (queries, query) = (self.clone(), query.clone());
        let check = async move {
            tokio::time::sleep(linger).await;
            let mut shared = lock(&queries.shared);
            if !query.has_subscribers() {
                shared.retain(|_, other| !Arc::ptr_eq(other, &query));
                query.end();
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(check)),
            Err(_) => self.end(),
        }
    }

    /// Ends all queries.
    pub fn end(&self) {
        let all = lock(&self.all);
        all.iter().filter_map(Weak::upgrade).for_each(|q| q.end());
    }
}

impl StandingQuery {
    fn start(program: &Program, text: &str) -> Result<Arc<StandingQuery>, ProgramError> {
        let mut command: Command = program.command("query", &["--format", "arrow"], text);
        let mut child = command
            .spawn()
            .map_err(|e| ProgramError::Failed(format!("weir: {e}")))?;
        let query = Arc::new(StandingQuery {
            state: Mutex::new(State {
                answer: None,
                view: RelationView::new(VIEW_BYTES_MAX),
                rows: VecDeque::new(),
                first_row: 0,
                next_row: 0,
                version: 0,
                sent_rows: 0,
                waits: !program.live,
                end: None,
                subscribers: Vec::new(),
                pid: child.id(),
            }),
            sent: Condvar::new(),
            ended: AtomicBool::new(false),
        });
        let reader = query.clone();
        let thread = std::thread::Builder::new().name("weir-standing".into());
        let messages = child.stderr.take().map(read_messages);
        let started = thread.spawn(move || reader.run(child, messages));
        started.map_err(|e| ProgramError::Failed(format!("weir: {e}")))?;
        Ok(query)
    }

    /// Reads the result up to its end.
    fn run(&self, mut child: Child, messages: Option<std::thread::JoinHandle<Vec<u8>>>) {
        let output = child.stdout.take().expect("it is a pipe");
        let read = self.read(output);
        if read.is_err() || self.ended.load(Ordering::Relaxed) {
            program::terminate(child.id());
        }
        let status = child.wait();
        let messages = messages.and_then(|thread| thread.join().ok());
        let messages = messages.unwrap_or_default();
        let end = match (status, read) {
            (Ok(status), _) if !status.success() => match program::error(status, &messages) {
                ProgramError::Refused(message) => QueryEnd::new("query", message),
                ProgramError::Failed(message) => QueryEnd::new("failed", message),
            },
            (Err(error), _) => QueryEnd::new("failed", error.to_string()),
            (Ok(_), Err(message)) => QueryEnd::new("failed", message),
            (Ok(_), Ok(())) => {
                QueryEnd::new("end", String::from_utf8_lossy(&messages).into_owned())
            }
        };
        let mut state = lock(&self.state);
        state.end = Some(end);
        state.notify();
    }

    fn read(&self, output: impl Read) -> Result<(), String> {
        let reader = StreamReader::try_new(output, None).map_err(|e| e.to_string())?;
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
        if state.end.is_none() {
            program::terminate(state.pid);
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
}

/// Reads the messages of a process in a thread of its own; keeps the last ones.
fn read_messages(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut last = LastBytes::default();
        // An error ends the messages as their end does.
        let _ = std::io::copy(&mut from, &mut last);
        last.0.into()
    })
}

/// Keeps the last 16 KiB that are written to it.
#[derive(Default)]
struct LastBytes(VecDeque<u8>);

impl Write for LastBytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend(bytes);
        let excess = self.0.len().saturating_sub(16 << 10);
        self.0.drain(..excess);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
