//! [`Uplink`]: the agent's side of the link: a thread that dials the monitor, for ever.
//!
//! Whoever has the uplink says words and never waits: a word is encoded where it is said, and what
//! the network or a disk has to do with it happens in the uplink's thread. Orders come through a
//! channel that is read when it suits.

mod connection;
mod sending;
mod thread;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::Notify;
use weir_model::{Batch, Nanos};

use crate::clock::Clock;
use crate::dial::Dial;
use crate::error::WireError;
use crate::frame::texts::TextTable;
use crate::frame::{self, Compression, FrameError};
use crate::message::{CHANNELS_MAX, LostBody, Up, UpBody};
use crate::outbox::spool::Spool;
use crate::outbox::{Backlog, EncodedMessage, LossSummary, Outbox, OutboxCapacity};
use crate::protocol::{AgentMessage, ChannelId, Hello, MonitorMessage, Note};

/// Orders that wait to be read, and their bytes; an agent that reads none loses its connection.
const EVENTS_MAX: usize = 2 * CHANNELS_MAX;
const EVENTS_BYTES_MAX: usize = 64 << 20;
/// The least memory for what waits.
const MEMORY_BYTES_MIN: usize = 256 << 10;
/// About how many rows go into one word.
const MESSAGE_ROWS: usize = 4096;
/// Channels whose bytes are remembered.
const CHANNELS_KNOWN_MAX: usize = 2 * CHANNELS_MAX;
/// How long the disk may take to finish what it was asked before the end.
const DISK_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The agent's clock, in nanoseconds since the Unix epoch: the one its rows are from.
pub type Now = Arc<dyn Fn() -> Nanos + Send + Sync>;

/// What an uplink is to be.
#[derive(Clone)]
pub struct UplinkOptions {
    /// The way to the monitor.
    pub dial: Dial,
    /// What is said first on every connection, besides how much is held.
    pub hello: Hello,
    /// The agent's clock.
    pub now: Now,
    /// The room for words that wait. Half of the memory is for what the monitor was sent and has not
    /// taken; it is told how much that is, and holds no more than half of it back for standing
    /// queries that look back.
    pub room: OutboxCapacity,
    /// The directory for what memory has no room for; without one nothing goes to disk. It belongs
    /// to this agent alone, and what an earlier process left in it is removed.
    pub spool: Option<PathBuf>,
    /// The longest pause between two attempts to reach the monitor.
    pub retry_max: Duration,
    /// The shortest, after the first failure; each further one doubles it.
    pub retry_min: Duration,
    /// How long a monitor may say nothing, before its welcome and at any time after: then it is as
    /// good as gone.
    pub silence_max: Duration,
    /// How long the end waits for what was said to be taken.
    pub shutdown_timeout: Duration,
}

impl UplinkOptions {
    /// With the default bounds: 32 MiB in memory, and 1 GiB on disk once there is a directory.
    pub fn new(dial: Dial, hello: Hello, now: Now) -> UplinkOptions {
        UplinkOptions {
            dial,
            hello,
            now,
            room: OutboxCapacity {
                memory_bytes: 32 << 20,
                disk_bytes: 1 << 30,
            },
            spool: None,
            retry_max: Duration::from_secs(10),
            retry_min: Duration::from_millis(100),
            silence_max: Duration::from_secs(20),
            shutdown_timeout: Duration::from_secs(2),
        }
    }
}

/// What comes down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkEvent {
    /// The monitor has welcomed us, for the first time or again, and the clock's offset is known.
    Welcome {
        /// The channels that are to run; others are over. Empty if this is another monitor than
        /// before: what ran was asked by that one.
        channels: Vec<ChannelId>,
        /// How often it wants to hear how far we have come.
        heartbeat: Nanos,
    },
    /// It says something: start, stop or heartbeat.
    Message(MonitorMessage),
    /// The connection is gone or did not come about; why, in words. Another is tried without our
    /// doing.
    Disconnected(String),
}

impl UplinkEvent {
    /// What it takes of the room for orders.
    fn bytes(&self) -> usize {
        match self {
            UplinkEvent::Message(MonitorMessage::Start { fragment, .. }) => fragment.len(),
            _ => 0,
        }
    }
}

/// How the link is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UplinkState {
    /// Welcomed, and the connection stands.
    pub connected: bool,
    /// The number of the monitor that welcomed us last.
    pub monitor: Option<u64>,
    /// What waits to be taken.
    pub waiting: Backlog,
    /// How often we were welcomed.
    pub welcomes: u64,
    /// How many connections ended or did not come about.
    pub failures: u64,
    /// Why the last of them did.
    pub last_failure: Option<String>,
    /// Rows that were for another monitor.
    pub rows_void: u64,
}

/// What the caller and the uplink's thread share.
struct Shared {
    state: Mutex<State>,
    /// Something is to be sent.
    send_ready: Notify,
    /// The disk has something to do.
    disk_ready: Notify,
    /// The end has come.
    ending: Notify,
    clock: Arc<Clock>,
}

struct State {
    outbox: Outbox,
    texts: TextTable,
    /// The newest, if it was not sent.
    status: Option<UpBody>,
    shown: UplinkState,
    bytes_out: BTreeMap<ChannelId, u64>,
    /// The column of a channel's rows that says how many requests each stands for.
    counts: BTreeMap<ChannelId, usize>,
    dropped: BTreeMap<ChannelId, u64>,
    /// How often we came to another monitor, and how often the caller has learned of it. As long as
    /// they differ, what the caller says is for the monitor before.
    monitors: u64,
    monitors_known: u64,
    /// Of which of them the caller was told last.
    monitors_reported: u64,
    /// Bytes of the orders that the caller has not read.
    events_bytes: usize,
    is_ending: bool,
}

/// What goes through the channel of orders.
struct QueuedEvent {
    order: UplinkEvent,
    /// Of which monitor it is: [`State::monitors`].
    monitors: u64,
}

/// The agent's side of the link.
pub struct Uplink {
    shared: Arc<Shared>,
    orders: Receiver<QueuedEvent>,
    now: Now,
    thread: Option<JoinHandle<()>>,
}

impl Uplink {
    /// Starts to dial. That nobody answers is no error: it is tried for ever.
    ///
    /// # Errors
    /// When an option makes no sense, the spool's directory cannot be used, or the thread does not
    /// start.
    pub fn dial(mut options: UplinkOptions) -> Result<Uplink, WireError> {
        let off = |what, why: &str| {
            let why = why.to_owned();
            Err(WireError::Option { what, why })
        };
        if options.room.memory_bytes < MEMORY_BYTES_MIN {
            return off("memory for waiting words", "at least 256 KiB are needed");
        }
        if options.retry_min.is_zero() || options.retry_min > options.retry_max {
            return off(
                "pause between attempts",
                "the shortest is 0 or above the longest",
            );
        }
        options.hello.held_bytes_max = options.room.sent_bytes() as u64;
        Up::hello(&options.hello)?;
        let spool = options.spool.as_deref().map(Spool::open).transpose()?;
        let room = OutboxCapacity {
            disk_bytes: spool.as_ref().map_or(0, |_| options.room.disk_bytes),
            ..options.room
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                outbox: Outbox::new(room),
                texts: TextTable::default(),
                status: None,
                shown: UplinkState::default(),
                bytes_out: BTreeMap::new(),
                counts: BTreeMap::new(),
                dropped: BTreeMap::new(),
                monitors: 0,
                monitors_known: 0,
                monitors_reported: 0,
                events_bytes: 0,
                is_ending: false,
            }),
            send_ready: Notify::new(),
            disk_ready: Notify::new(),
            ending: Notify::new(),
            clock: Arc::new(Clock::new()),
        });
        let (heard, orders) = sync_channel(EVENTS_MAX);
        let now = options.now.clone();
        let thread = start(options, shared.clone(), spool, heard)?;
        Ok(Uplink {
            shared,
            orders,
            now,
            thread: Some(thread),
        })
    }

    /// Says a word; never waits for anybody. Rows for which there is no room are lost and counted;
    /// the monitor is told. A word that breaks the protocol's bounds becomes a note that says so.
    pub fn send(&self, message: AgentMessage) {
        self.send_all([message]);
    }

    /// The same of words that are to travel together.
    pub fn send_all(&self, messages: impl IntoIterator<Item = AgentMessage>) {
        let mut state = self.shared.lock();
        for message in messages {
            match message {
                AgentMessage::Rows { channel, batch } => {
                    for start in (0..batch.len()).step_by(MESSAGE_ROWS) {
                        let rows = MESSAGE_ROWS.min(batch.len() - start);
                        state.put_rows(channel, &batch.slice(start, rows));
                    }
                }
                message => match UpBody::try_from(message) {
                    Ok(body @ UpBody::Status(_)) => state.status = Some(body),
                    Ok(body) => state.put(EncodedMessage::message(body)),
                    Err(malformed) => {
                        let at = self.shared.clock.to_monitor((self.now)());
                        state.put_note(at, "word_malformed", Some(malformed.to_string()), 1);
                    }
                },
            }
            if state.outbox.has_disk_task() {
                // The disk may make room while we go on.
                drop(state);
                self.shared.disk_ready.notify_one();
                state = self.shared.lock();
            }
        }
        drop(state);
        self.shared.send_ready.notify_one();
    }

    /// The next thing that came down, if it comes within `wait_max`. `None` as well when the
    /// uplink's thread is gone.
    pub fn receive(&self, wait_max: Duration) -> Option<UplinkEvent> {
        let told = match wait_max.is_zero() {
            true => self.orders.try_recv().ok()?,
            false => self.orders.recv_timeout(wait_max).ok()?,
        };
        let mut state = self.shared.lock();
        state.events_bytes -= told.order.bytes();
        if let UplinkEvent::Welcome { .. } = told.order {
            state.monitors_known = told.monitors;
        }
        drop(state);
        Some(told.order)
    }

    /// The monitor's time.
    pub fn clock(&self) -> Arc<Clock> {
        self.shared.clock.clone()
    }

    /// How the link is.
    pub fn state(&self) -> UplinkState {
        let state = self.shared.lock();
        UplinkState {
            waiting: state.outbox.waiting(),
            ..state.shown.clone()
        }
    }

    /// How many requests a row of the channel stands for: one, or as many as this column body.
    pub fn set_counts(&self, channel: ChannelId, column: Option<usize>) {
        let counts = &mut self.shared.lock().counts;
        match column {
            Some(column) => drop(counts.insert(channel, column)),
            None => drop(counts.remove(&channel)),
        }
        if counts.len() > CHANNELS_KNOWN_MAX {
            // Numbers are not used twice, so the smallest has ended first.
            counts.pop_first();
        }
    }

    /// The bytes that a channel's rows have taken so far.
    pub fn bytes_out(&self, channel: ChannelId) -> u64 {
        let state = self.shared.lock();
        state.bytes_out.get(&channel).copied().unwrap_or(0)
    }

    /// Requests in rows that were dropped here since the last call, by channel. The monitor receives
    /// that count from the uplink.
    pub fn dropped(&self) -> Vec<(ChannelId, u64)> {
        let mut state = self.shared.lock();
        let mut dropped = std::mem::take(&mut state.dropped);
        for (channel, rows) in state.outbox.take_dropped() {
            *dropped.entry(channel).or_default() += rows;
        }
        dropped.into_iter().collect()
    }

    /// Ends the link. What waits is delivered first if the monitor takes it within
    /// [`UplinkOptions::shutdown_timeout`]. True if nothing is left.
    pub fn close(mut self) -> bool {
        self.finish();
        self.shared.lock().outbox.waiting().messages == 0
    }

    fn finish(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.ending.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            // It has said why on stderr; what it had is gone with it.
            self.shared.lock().shown.connected = false;
        }
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

impl State {
    /// Encodes rows of one word, or of as many as they need.
    fn put_rows(&mut self, channel: ChannelId, batch: &Batch) {
        let rows = batch.len();
        if rows == 0 {
            return;
        }
        let counts = self.counts.get(&channel).copied();
        let refused = match frame::encode(channel, batch, &mut self.texts, Compression::None) {
            Ok(mut frame) => {
                if counts.is_some() {
                    frame.head.requests = batch.requests(counts);
                }
                let message = EncodedMessage::rows(frame, self.texts.len());
                self.count_bytes(channel, message.bytes());
                return self.put(message);
            }
            Err(FrameError::TooLong | FrameError::TextBudget) if rows > 1 => {
                let half = rows / 2;
                self.put_rows(channel, &batch.slice(0, half));
                return self.put_rows(channel, &batch.slice(half, rows - half));
            }
            Err(refused) => refused,
        };
        let requests = batch.requests(counts);
        *self.dropped.entry(channel).or_default() += requests;
        self.put(EncodedMessage::message(UpBody::Lost(LostBody {
            channel: channel.0,
            requests,
            cause: refused.cause().to_owned(),
        })));
    }

    fn put(&mut self, message: EncodedMessage) {
        match self.monitors_known != self.monitors {
            true => {
                self.shown.rows_void += LossSummary::of([&message.kind])
                    .rows()
                    .values()
                    .sum::<u64>()
            }
            false => self.outbox.push(message),
        }
    }

    fn count_bytes(&mut self, channel: ChannelId, bytes: usize) {
        *self.bytes_out.entry(channel).or_default() += bytes as u64;
        if self.bytes_out.len() > CHANNELS_KNOWN_MAX {
            // Numbers are not used twice, so the smallest has ended first.
            self.bytes_out.pop_first();
        }
    }

    fn put_note(&mut self, at: Nanos, counter: &str, cause: Option<String>, value: i64) {
        let note = Note {
            at,
            place: "uplink".to_owned(),
            counter: counter.to_owned(),
            cause,
            device: None,
            value,
            total: value,
        };
        if let Ok(body) = UpBody::try_from(AgentMessage::Note(note)) {
            self.put(EncodedMessage::message(body));
        }
    }
}

/// Starts the uplink's thread.
fn start(
    options: UplinkOptions,
    shared: Arc<Shared>,
    spool: Option<Spool>,
    orders: SyncSender<QueuedEvent>,
) -> Result<JoinHandle<()>, WireError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(WireError::Thread)?;
    let run = move || {
        runtime.block_on(thread::run(&options, &shared, spool, &orders));
        // A disk that hangs does not hold up the end.
        runtime.shutdown_timeout(DISK_SHUTDOWN_TIMEOUT);
    };
    std::thread::Builder::new()
        .name("weir-uplink".into())
        .spawn(run)
        .map_err(WireError::Thread)
}
