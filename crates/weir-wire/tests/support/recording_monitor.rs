//! A monitor that records agents' rows, loses its volatile state when it restarts, and checks what
//! it received against what the agent sent.
#![allow(dead_code)] // Each test file uses its own part of this.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use weir_model::Column;
use weir_wire::{
    AgentMessage, ChannelId, Dial, EventQueue, MonitorMessage, NextEvent, Server, ServerEvent,
    ServerOptions, SessionId, Welcome,
};

/// What was received from one agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// The last message that was received.
    pub acked: u64,
    /// The values of the first column of each channel's rows, as received.
    pub rows: BTreeMap<ChannelId, Vec<i64>>,
    /// Rows that were reported as lost.
    pub lost: BTreeMap<ChannelId, u64>,
    /// The causes.
    pub causes: BTreeMap<String, u64>,
    pub started: Vec<ChannelId>,
    pub failed: Vec<ChannelId>,
    /// Counters of notes, with the sum of their values.
    pub notes: BTreeMap<String, i64>,
    pub reached: i64,
}

impl Account {
    /// Rows received and rows reported as lost, of a channel.
    pub fn accounted(&self, channel: ChannelId) -> u64 {
        self.delivered(channel) + self.lost.get(&channel).copied().unwrap_or(0)
    }

    pub fn delivered(&self, channel: ChannelId) -> u64 {
        self.rows.get(&channel).map_or(0, |rows| rows.len() as u64)
    }

    /// Each row at most once and in order.
    pub fn check_order(&self) {
        for (channel, rows) in &self.rows {
            let sorted = rows.windows(2).all(|pair| pair[0] < pair[1]);
            assert!(sorted, "doubled or out of order in {channel:?}: {rows:?}");
        }
    }

    fn take(&mut self, word: AgentMessage) {
        match word {
            AgentMessage::Rows { channel, batch } => {
                let first = batch.ts.first().copied().unwrap_or(i64::MAX);
                assert!(
                    first > self.reached,
                    "rows at {first} after {}",
                    self.reached
                );
                let Column::Int(values) = &batch.columns[0] else {
                    panic!("the first column is an integer");
                };
                self.rows
                    .entry(channel)
                    .or_default()
                    .extend(values.values());
            }
            AgentMessage::Lost(lost) => {
                *self.lost.entry(ChannelId(lost.channel)).or_default() += lost.requests;
                *self.causes.entry(lost.cause).or_default() += lost.requests;
            }
            AgentMessage::Watermark(at) => {
                assert!(at >= self.reached, "time goes back to {at}");
                self.reached = at;
            }
            AgentMessage::Started(started) => self.started.push(ChannelId(started.channel)),
            AgentMessage::Failed(failed) => self.failed.push(ChannelId(failed.channel)),
            AgentMessage::Note(note) => *self.notes.entry(note.counter).or_default() += note.value,
            AgentMessage::Status(_) | AgentMessage::Capabilities(_) | AgentMessage::Hosts(_) => {}
        }
    }
}

/// The state of a monitor.
#[derive(Clone, Debug, Default)]
pub struct MonitorState {
    /// The monitor's number.
    pub monitor: u64,
    /// The term in which it leads.
    pub term: u64,
    /// The monitor and the term in the last hello.
    pub hello: (u64, u64),
    /// By instance of the agent.
    pub accounts: BTreeMap<u64, Account>,
    /// The durable state: what remains after a restart.
    pub safe: BTreeMap<u64, Account>,
    /// The number of repeated messages.
    pub repeated: u64,
    /// Channels that should run.
    pub channels: Vec<ChannelId>,
}

/// The behaviour of a monitor.
#[derive(Clone, Copy, Debug)]
pub struct Behavior {
    /// The number of messages after which the state is made durable and acknowledged.
    pub ack_every: u64,
    /// The processing time of each message.
    pub pause: Duration,
}

impl Default for Behavior {
    fn default() -> Behavior {
        Behavior {
            ack_every: 1,
            pause: Duration::ZERO,
        }
    }
}

/// A monitor.
pub struct RecordingMonitor {
    server: Server,
    stop: Arc<AtomicBool>,
    book: Arc<Mutex<MonitorState>>,
    thread: Option<JoinHandle<()>>,
}

impl RecordingMonitor {
    /// On a free port, without state.
    pub fn new(monitor: u64, behavior: Behavior) -> RecordingMonitor {
        let book = MonitorState {
            monitor,
            ..MonitorState::default()
        };
        RecordingMonitor::open(book, behavior)
    }

    /// With the durable state of an earlier monitor.
    pub fn open(book: MonitorState, behavior: Behavior) -> RecordingMonitor {
        let (server, events) = Server::bind(ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            open: true,
            ..ServerOptions::default()
        })
        .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let book = Arc::new(Mutex::new(MonitorState {
            accounts: book.safe.clone(),
            ..book
        }));
        let (stopping, shared) = (stop.clone(), book.clone());
        let thread = std::thread::spawn(move || keep(events, &stopping, &shared, behavior));
        RecordingMonitor {
            server,
            stop,
            book,
            thread: Some(thread),
        }
    }

    pub fn address(&self) -> SocketAddr {
        let address = self.server.address().to_string();
        address.parse().unwrap()
    }

    pub fn dial(&self) -> Dial {
        Dial::new(self.address().to_string().parse().unwrap())
    }

    pub fn account(&self, instance: u64) -> Account {
        let book = self.book.lock().unwrap();
        book.accounts.get(&instance).cloned().unwrap_or_default()
    }

    pub fn run_channels(&self, channels: &[u64]) {
        let channels = channels.iter().map(|id| ChannelId(*id));
        self.book.lock().unwrap().channels = channels.collect();
    }

    /// The monitor and the term in the last hello.
    pub fn hello(&self) -> (u64, u64) {
        self.book.lock().unwrap().hello
    }

    /// Stops as if killed; returns its state.
    pub fn kill(mut self) -> MonitorState {
        self.end();
        self.book.lock().unwrap().clone()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the book is in order");
        }
    }
}

impl Drop for RecordingMonitor {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// An agent's connection.
struct Session {
    instance: u64,
    orders: mpsc::Sender<MonitorMessage>,
    acked: u64,
}

fn keep(mut events: EventQueue, stop: &AtomicBool, book: &Mutex<MonitorState>, behavior: Behavior) {
    let mut sessions: BTreeMap<SessionId, Session> = BTreeMap::new();
    let mut since_ack = 0;
    while !stop.load(Ordering::Relaxed) {
        let event = match events.next(Duration::from_millis(5)) {
            NextEvent::Event(event) => event,
            NextEvent::Timeout => {
                make_durable(&mut book.lock().unwrap(), &mut sessions);
                continue;
            }
            NextEvent::Ended => return,
        };
        let mut book = book.lock().unwrap();
        match event {
            ServerEvent::Joined(joined) => {
                let instance = joined.hello.instance;
                book.hello = (joined.hello.monitor, joined.hello.term);
                sessions.retain(|_, session| session.instance != instance);
                let welcome = Welcome {
                    monitor: book.monitor,
                    acked: book.safe.get(&instance).map_or(0, |a| a.acked),
                    channels: book.channels.iter().map(|c| c.0).collect(),
                    heartbeat_interval_ns: 50_000_000,
                    term: book.term,
                    ..Welcome::default()
                };
                let _ = joined.welcome.send(Ok(welcome));
                for channel in &book.channels {
                    let start = MonitorMessage::start(*channel, vec![7; 3]);
                    let _ = joined.orders.try_send(start);
                }
                let session = Session {
                    instance,
                    orders: joined.orders,
                    acked: 0,
                };
                sessions.insert(joined.session, session);
            }
            ServerEvent::Message {
                session,
                number: Some(number),
                message,
            } => {
                let Some(session) = sessions.get(&session) else {
                    continue;
                };
                let instance = session.instance;
                let book = &mut *book;
                let account = book.accounts.entry(instance).or_default();
                if number <= account.acked {
                    book.repeated += 1;
                    continue;
                }
                assert_eq!(number, account.acked + 1, "a message is missing");
                account.acked = number;
                account.take(message);
                since_ack += 1;
                if since_ack >= behavior.ack_every {
                    since_ack = 0;
                    make_durable(book, &mut sessions);
                }
                std::thread::sleep(behavior.pause);
            }
            ServerEvent::Left { session, .. } => {
                sessions.remove(&session);
            }
            _ => {}
        }
    }
}

fn make_durable(book: &mut MonitorState, sessions: &mut BTreeMap<SessionId, Session>) {
    for session in sessions.values_mut() {
        let account = book.accounts.get(&session.instance);
        let number = account.map_or(0, |account| account.acked);
        // When the queue is full, the ack is sent the next time.
        let send_ack = || session.orders.try_send(MonitorMessage::Ack(number));
        if session.acked < number && send_ack().is_ok() {
            session.acked = number;
        }
    }
    book.safe = book.accounts.clone();
}
