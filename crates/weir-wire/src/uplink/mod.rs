//! [`Uplink`]: the agent's side of the link: a thread that keeps connecting to the monitor.
//!
//! Sending never blocks: messages are encoded by the caller, and the uplink's thread does the
//! network and disk I/O. Events are queued until the caller reads them.

mod connection;
mod sending;
mod thread;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::sync::Notify;
use weir_model::{Batch, Nanos};

use crate::clock::Clock;
use crate::dial::Dial;
use crate::error::WireError;
use crate::frame::texts::TextTable;
use crate::frame::{self, Compression, FrameError};
use crate::message::{
    AgentBody, AgentMessage, CHANNELS_MAX, ChannelId, FromAgent, Hello, MonitorMessage, Note,
    Version,
};
use crate::outbox::spool::Spool;
use crate::outbox::{Backlog, EncodedMessage, LossSummary, Outbox, OutboxCapacity};

/// Capacity for events that the caller has not read, in number and bytes; an agent that reads none
/// loses its connection.
const EVENTS_MAX: usize = 2 * CHANNELS_MAX;
const EVENTS_BYTES_MAX: usize = 64 << 20;
/// The smallest memory for queued messages.
const MEMORY_BYTES_MIN: usize = 256 << 10;
/// The approximate number of rows in one message.
const MESSAGE_ROWS: usize = 4096;
/// The least and the greatest pause between two times at which content is sent again.
const RESEND_PAUSE: Duration = Duration::from_secs(1);
const RESEND_PAUSE_MAX: Duration = Duration::from_secs(600);
/// The number of channels whose bytes are counted.
const CHANNELS_KNOWN_MAX: usize = 2 * CHANNELS_MAX;
/// How long a running disk task may take at shutdown.
const DISK_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The agent's clock, in nanoseconds since the Unix epoch; timestamps of its rows are from it.
pub type UplinkTime = Arc<dyn Fn() -> Nanos + Send + Sync>;

/// The configuration of an uplink.
#[derive(Clone)]
pub struct UplinkOptions {
    /// How to reach the monitor.
    pub dial: Dial,
    /// The first message on every connection; the uplink sets `held_bytes_max`.
    pub hello: Hello,
    /// The capabilities of the agent's sources, encoded: sent on every connection to a monitor
    /// whose version supports them. A message with others replaces them.
    pub capabilities: Vec<u8>,
    /// The monitor's highest term of which an earlier process knows.
    pub leader: LeaderTerm,
    /// The agent's clock.
    pub now: UplinkTime,
    /// The capacity for queued messages. Half of the memory is for sent messages that are not
    /// acknowledged; the monitor is informed of its size and delays acks for standing queries over
    /// at most half of it.
    pub room: OutboxCapacity,
    /// The directory for messages that do not fit in memory; without one nothing is written to
    /// disk. It belongs to this agent alone, and files of an earlier process in it are removed.
    pub spool: Option<PathBuf>,
    /// The longest pause between two attempts to reach the monitor.
    pub retry_max: Duration,
    /// The pause after the first failure; each further failure doubles it.
    pub retry_min: Duration,
    /// The longest silence of a monitor, before its welcome and at any time after; then it counts
    /// as disconnected.
    pub silence_max: Duration,
    /// How long closing waits for acks.
    pub shutdown_timeout: Duration,
    /// The thread that is unparked after each event, and when messages are acknowledged.
    pub listener: Thread,
}

impl UplinkOptions {
    /// With default limits: 32 MiB in memory, and 1 GiB on disk if there is a directory. The
    /// calling thread is the listener.
    pub fn new(dial: Dial, hello: Hello, now: UplinkTime) -> UplinkOptions {
        UplinkOptions {
            dial,
            hello,
            capabilities: Vec::new(),
            leader: LeaderTerm::default(),
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
            listener: std::thread::current(),
        }
    }
}

/// A term of a monitor that has standbys: each process that takes over has a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LeaderTerm {
    /// The number of the monitor, which all processes with its state have; 0 for none.
    pub monitor: u64,
    /// The term; 0 for a monitor without terms.
    pub term: u64,
}

/// An event from the uplink.
#[derive(Clone, Debug, PartialEq)]
pub enum UplinkEvent {
    /// The monitor has welcomed the agent, for the first time or again, and the clock offset is
    /// known.
    Welcome {
        /// The channels that should run; others have ended. Empty if this is another monitor than
        /// before: the running channels belong to the previous one.
        channels: Vec<ChannelId>,
        /// The interval between watermarks.
        heartbeat: Nanos,
    },
    /// A message: start, stop or heartbeat interval.
    Message(MonitorMessage),
    /// The connection was lost or could not be established, with the reason. The uplink tries
    /// again.
    Disconnected(String),
}

impl UplinkEvent {
    /// Its memory in the queue.
    fn bytes(&self) -> usize {
        match self {
            UplinkEvent::Message(MonitorMessage::Start(start)) => start.fragment.len(),
            UplinkEvent::Message(MonitorMessage::Actions(actions)) => actions.encoded_len(),
            _ => 0,
        }
    }
}

/// The state of the link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UplinkState {
    /// Connected and welcomed.
    pub connected: bool,
    /// The number of the last monitor.
    pub monitor: Option<u64>,
    /// The highest term of the last monitor.
    pub leader: LeaderTerm,
    /// The version of the protocol that both use.
    pub version: Option<Version>,
    /// The messages that are not acknowledged.
    pub waiting: Backlog,
    /// The number of welcomes.
    pub welcomes: u64,
    /// The monitor has acknowledged a message: it does not need the hello's tallies of earlier
    /// processes again, also if it is killed.
    pub has_acks: bool,
    /// The number of connections that were lost or could not be established.
    pub failures: u64,
    /// The reason of the last of them.
    pub last_failure: Option<String>,
    /// Rows discarded because they were for another monitor.
    pub rows_void: u64,
    /// Messages of which this version of the protocol does not know everything.
    pub unknown: u64,
}

/// What the caller and the uplink's thread share.
struct Shared {
    state: Mutex<State>,
    /// There is something to send.
    send_ready: Notify,
    /// There is a disk task.
    disk_ready: Notify,
    /// The uplink is closing.
    ending: Notify,
    clock: Arc<Clock>,
    /// [`UplinkOptions::listener`].
    listener: Thread,
}

struct State {
    outbox: Outbox,
    texts: TextTable,
    /// The newest status, if it was not sent.
    status: Option<AgentBody>,
    /// The capabilities of the agent's sources, encoded, and how often they have changed.
    capabilities: (Vec<u8>, u64),
    shown: UplinkState,
    bytes_out: BTreeMap<ChannelId, u64>,
    /// The column of a channel's rows with the number of requests that each represents.
    counts: BTreeMap<ChannelId, usize>,
    dropped: BTreeMap<ChannelId, u64>,
    /// Channels of which rows were dropped because the outbox was full.
    incomplete: Incomplete,
    /// How often the monitor has changed, and how often the caller has been informed. While they
    /// differ, messages of the caller are for the previous monitor.
    monitors: u64,
    monitors_known: u64,
    /// The number of the change that was reported to the caller last.
    monitors_reported: u64,
    /// Bytes of the events that the caller has not read.
    events_bytes: usize,
    is_ending: bool,
}

/// Channels of which rows were dropped because the outbox was full.
#[derive(Default)]
struct Incomplete(BTreeMap<ChannelId, IncompleteChannel>);

struct IncompleteChannel {
    is_due: bool,
    /// When its content may be sent again, and the pause before that.
    next: Instant,
    pause: Duration,
}

impl Incomplete {
    /// Adds a channel, at `now`.
    fn add(&mut self, channel: ChannelId, now: Instant) {
        let new = IncompleteChannel {
            is_due: true,
            next: now,
            pause: Duration::ZERO,
        };
        self.0.entry(channel).or_insert(new).is_due = true;
        if self.0.len() > CHANNELS_KNOWN_MAX {
            // Numbers are never reused, so the smallest has ended first.
            self.0.pop_first();
        }
    }

    /// The channels whose content is to be sent again at `now`, once each.
    fn take(&mut self, now: Instant) -> BTreeSet<ChannelId> {
        let due = self.0.iter_mut().filter(|(_, c)| c.is_due && now >= c.next);
        let taken = due.map(|(id, channel)| {
            channel.pause = match now > channel.next + channel.pause {
                // The last time was long ago.
                true => RESEND_PAUSE,
                false => (channel.pause * 2).clamp(RESEND_PAUSE, RESEND_PAUSE_MAX),
            };
            channel.is_due = false;
            channel.next = now + channel.pause;
            *id
        });
        taken.collect()
    }
}

/// An entry of the event queue.
struct QueuedEvent {
    order: UplinkEvent,
    /// The monitor that it is from: [`State::monitors`].
    monitors: u64,
}

/// The agent's side of the link.
pub struct Uplink {
    shared: Arc<Shared>,
    orders: Receiver<QueuedEvent>,
    now: UplinkTime,
    thread: Option<JoinHandle<()>>,
}

impl Uplink {
    /// Starts connecting. An unreachable monitor is no error: the uplink keeps trying.
    ///
    /// # Errors
    /// If an option is invalid, the spool's directory cannot be used, or the thread does not start.
    pub fn dial(mut options: UplinkOptions) -> Result<Uplink, WireError> {
        let off = |what, why: &str| {
            let why = why.to_owned();
            Err(WireError::Option { what, why })
        };
        if options.room.memory_bytes < MEMORY_BYTES_MIN {
            return off("memory for queued messages", "at least 256 KiB are needed");
        }
        if options.retry_min.is_zero() || options.retry_min > options.retry_max {
            return off(
                "pause between attempts",
                "the shortest is 0 or above the longest",
            );
        }
        options.hello.held_bytes_max = options.room.sent_bytes() as u64;
        FromAgent::hello(options.hello.clone())?;
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
                capabilities: (std::mem::take(&mut options.capabilities), 0),
                shown: UplinkState {
                    leader: options.leader,
                    ..UplinkState::default()
                },
                bytes_out: BTreeMap::new(),
                counts: BTreeMap::new(),
                dropped: BTreeMap::new(),
                incomplete: Incomplete::default(),
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
            listener: options.listener.clone(),
        });
        let (events, orders) = sync_channel(EVENTS_MAX);
        let now = options.now.clone();
        let thread = start(options, shared.clone(), spool, events)?;
        Ok(Uplink {
            shared,
            orders,
            now,
            thread: Some(thread),
        })
    }

    /// Sends a message without blocking. Rows that do not fit are lost, counted, and reported to
    /// the monitor. A message that violates the protocol's bounds becomes a note about that.
    pub fn send(&self, message: AgentMessage) {
        self.send_all([message]);
    }

    /// Sends several messages as one batch.
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
                message => match AgentBody::try_from(message) {
                    Ok(body @ AgentBody::Status(_)) => state.status = Some(body),
                    Ok(AgentBody::Capabilities(encoded)) => {
                        let changes = state.capabilities.1 + 1;
                        state.capabilities = (encoded, changes);
                    }
                    Ok(body) => state.put(EncodedMessage::message(body)),
                    Err(malformed) => {
                        let at = self.shared.clock.to_monitor((self.now)());
                        state.put_note(at, "word_malformed", Some(malformed.to_string()), 1);
                    }
                },
            }
            if state.outbox.has_disk_task() {
                // The disk task may free memory concurrently.
                drop(state);
                self.shared.disk_ready.notify_one();
                state = self.shared.lock();
            }
        }
        drop(state);
        self.shared.send_ready.notify_one();
    }

    /// The next event, if one arrives within `wait_max`. `None` also if the uplink's thread is
    /// gone.
    pub fn receive(&self, wait_max: Duration) -> Option<UplinkEvent> {
        let received = match wait_max.is_zero() {
            true => self.orders.try_recv().ok()?,
            false => self.orders.recv_timeout(wait_max).ok()?,
        };
        let mut state = self.shared.lock();
        state.events_bytes -= received.order.bytes();
        if let UplinkEvent::Welcome { .. } = received.order {
            state.monitors_known = received.monitors;
        }
        drop(state);
        Some(received.order)
    }

    /// The clock that converts to the monitor's time.
    pub fn clock(&self) -> Arc<Clock> {
        self.shared.clock.clone()
    }

    /// The state of the link.
    pub fn state(&self) -> UplinkState {
        let state = self.shared.lock();
        UplinkState {
            waiting: state.outbox.waiting(),
            ..state.shown.clone()
        }
    }

    /// Sets how many requests a row of the channel represents: one, or the value of this column.
    pub fn set_counts(&self, channel: ChannelId, column: Option<usize>) {
        let counts = &mut self.shared.lock().counts;
        match column {
            Some(column) => drop(counts.insert(channel, column)),
            None => drop(counts.remove(&channel)),
        }
        if counts.len() > CHANNELS_KNOWN_MAX {
            // Numbers are never reused, so the smallest has ended first.
            counts.pop_first();
        }
    }

    /// The bytes of a channel's rows so far.
    pub fn bytes_out(&self, channel: ChannelId) -> u64 {
        let state = self.shared.lock();
        state.bytes_out.get(&channel).copied().unwrap_or(0)
    }

    /// Requests in rows that were dropped here since the last call, by channel. The uplink reports
    /// them to the monitor.
    pub fn dropped(&self) -> Vec<(ChannelId, u64)> {
        let mut state = self.shared.lock();
        let mut dropped = std::mem::take(&mut state.dropped);
        for (channel, rows) in state.outbox.take_dropped() {
            *dropped.entry(channel).or_default() += rows;
            state.incomplete.add(channel, Instant::now());
        }
        dropped.into_iter().collect()
    }

    /// The channels of which [`Uplink::dropped`] has reported rows that did not fit, once each and
    /// when there is room: the content of their relations should be sent again. The pause before
    /// that doubles each time that rows of the channel are soon dropped once more.
    pub fn incomplete(&self) -> BTreeSet<ChannelId> {
        let mut state = self.shared.lock();
        match state.shown.connected && state.outbox.has_room() {
            true => state.incomplete.take(Instant::now()),
            false => BTreeSet::new(),
        }
    }

    /// Closes the link. Queued messages are delivered first if the monitor acknowledges them within
    /// [`UplinkOptions::shutdown_timeout`]. Returns whether nothing is left.
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
            // A panic has printed its reason on stderr; its messages are lost.
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
    /// Encodes rows as one message, or as several if needed.
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
        let lost = AgentMessage::lost(channel, requests, refused.cause());
        let body = AgentBody::try_from(lost).expect("it is within the bounds");
        self.put(EncodedMessage::message(body));
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
            // Numbers are never reused, so the smallest has ended first.
            self.bytes_out.pop_first();
        }
    }

    fn put_note(&mut self, at: Nanos, counter: &str, cause: Option<String>, value: i64) {
        let note = Note {
            at_ns: at,
            place: "uplink".to_owned(),
            counter: counter.to_owned(),
            cause,
            device: None,
            value,
            total: value,
        };
        if let Ok(body) = AgentBody::try_from(AgentMessage::Note(note)) {
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
        // A hanging disk does not delay shutdown.
        runtime.shutdown_timeout(DISK_SHUTDOWN_TIMEOUT);
    };
    std::thread::Builder::new()
        .name("weir-uplink".into())
        .spawn(run)
        .map_err(WireError::Thread)
}
