//! A small monitor on the real network: it starts the fragments of a test and stores the messages
//! of agents.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Sender, error::TrySendError};
use weir_model::{Catalog, Nanos, Value};
use weir_query::plan::wire;
use weir_query::{CheckOptions, compile};
use weir_wire::{
    AgentMessage, ChannelId, EventQueue, FleetClock, Hello, Limits, MonitorMessage, NextEvent,
    Note, Server, ServerEvent, ServerOptions, SessionId, SiteHosts, Status, Welcome,
};

use crate::support::{Scratch, weir};

/// The time after which a test gives up waiting. It is not a measure of speed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A user without privileges.
pub const UNPRIVILEGED_UID: u32 = 65534;

/// A monitor that listens on a free port of this host.
pub struct Monitor {
    address: SocketAddr,
    clock: fn() -> Nanos,
    received: Arc<Mutex<ReceivedMessages>>,
    deaf: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The messages that agents have sent, and the orders for them.
#[derive(Default)]
pub struct ReceivedMessages {
    /// Rows by channel, as pairs of instant and values.
    pub rows: BTreeMap<u64, Vec<(Nanos, Vec<Value>)>>,
    /// The instant at which each channel starts.
    pub started: BTreeMap<u64, Nanos>,
    pub failed: BTreeMap<u64, String>,
    pub lost: BTreeMap<u64, u64>,
    pub notes: Vec<Note>,
    pub status: Option<Status>,
    pub hosts: Option<SiteHosts>,
    /// The watermark of the connected agent.
    pub reached: Nanos,
    pub hellos: Vec<Hello>,
    /// The number of agents that have disconnected.
    pub left: usize,
    fragments: BTreeMap<u64, Vec<u8>>,
    orders: Option<Sender<MonitorMessage>>,
    session: Option<SessionId>,
    /// The number of the last message of each process.
    acked: HashMap<u64, u64>,
}

/// A clock that is `OFFSET_MS` ahead of the host's when it is first read, and fast by `DRIFT_PPM`.
pub fn wrong_clock<const OFFSET_MS: i64, const DRIFT_PPM: i64>() -> Nanos {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    let since = STARTED.get_or_init(Instant::now).elapsed().as_nanos() as Nanos;
    host_clock() + OFFSET_MS * 1_000_000 + since * DRIFT_PPM / 1_000_000
}

/// The host's clock.
pub fn host_clock() -> Nanos {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as Nanos
}

impl Monitor {
    pub fn start() -> Monitor {
        Monitor::with_clock(host_clock)
    }

    /// A monitor with the clock `clock`, to which agents synchronise.
    pub fn with_clock(clock: fn() -> Nanos) -> Monitor {
        let options = ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            limits: Limits {
                events_waiting_max: 8,
                ..Limits::default()
            },
            open: true,
            clock: FleetClock::of(clock),
            ..ServerOptions::default()
        };
        let (server, events) = Server::bind(options).unwrap();
        let address = server.address().to_string().parse().unwrap();
        let (received, deaf, stop) = <(
            Arc<Mutex<ReceivedMessages>>,
            Arc<AtomicBool>,
            Arc<AtomicBool>,
        )>::default();
        let (received_here, deaf_here, stop_here) = (received.clone(), deaf.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            receive(events, &received_here, &deaf_here, &stop_here);
            drop(server);
        });
        Monitor {
            address,
            clock,
            received,
            deaf,
            stop,
            thread: Some(thread),
        }
    }

    /// The address on which it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The time of its clock.
    pub fn now(&self) -> Nanos {
        (self.clock)()
    }

    /// An agent named `a` of this monitor, with its state in `scratch`.
    pub fn agent(&self, scratch: &Scratch, args: &[&str]) -> Agent {
        let monitor = self.address.to_string();
        let state = scratch.path().to_str().unwrap();
        let own = ["agent", "-v", "--monitor", &monitor, "--host", "a"];
        let mut command = weir(&[&own[..], &["--state", state], args].concat());
        Agent(Some(command.stderr(Stdio::piped()).spawn().unwrap()))
    }

    /// The same as another user than root, without privileges except `capabilities`.
    pub fn agent_with(&self, scratch: &Scratch, capabilities: &[&str]) -> Agent {
        let monitor = self.address.to_string();
        let state = scratch.path().join("own");
        std::fs::create_dir(&state).unwrap();
        std::os::unix::fs::chown(&state, Some(UNPRIVILEGED_UID), None).unwrap();
        let mut command = with_rights(capabilities);
        command.args([env!("CARGO_BIN_EXE_weir"), "agent", "--monitor", &monitor]);
        command.args(["--host", "a", "--state", state.to_str().unwrap()]);
        Agent(Some(command.stderr(Stdio::piped()).spawn().unwrap()))
    }

    /// Makes agents run a query, without changes, as channel `channel`.
    pub fn run(&self, channel: u64, query: &str) {
        let checked = compile(query, &Catalog::builtin(), &CheckOptions::live());
        let fragment = wire::encode(&checked.expect("the query is sound").plan);
        let mut received = self.received();
        received.fragments.insert(channel, fragment.clone());
        received.order(MonitorMessage::start(ChannelId(channel), fragment));
    }

    /// Ends a channel.
    pub fn end(&self, channel: u64) {
        let mut received = self.received();
        received.fragments.remove(&channel);
        received.order(MonitorMessage::Stop(channel));
    }

    /// Sets whether it ignores the messages of agents.
    pub fn set_deaf(&self, deaf: bool) {
        self.deaf.store(deaf, Ordering::Relaxed);
    }

    pub fn received(&self) -> MutexGuard<'_, ReceivedMessages> {
        self.received.lock().unwrap()
    }

    /// Waits until `done` returns true for the received messages.
    pub fn until(&self, what: &str, mut done: impl FnMut(&ReceivedMessages) -> bool) {
        let begin = Instant::now();
        while !done(&self.received()) {
            assert!(begin.elapsed() < TIMEOUT, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("an agent broke the rules");
        }
    }
}

/// setpriv(1): the command that follows runs as another user than root, with these capabilities.
pub fn with_rights(capabilities: &[&str]) -> Command {
    let set: String = capabilities.iter().map(|c| format!(",+{c}")).collect();
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={UNPRIVILEGED_UID}"));
    for of in ["bounding-set", "inh-caps", "ambient-caps"] {
        command.arg(format!("--{of}=-all{set}"));
    }
    command
}

/// A running agent; killed when it is dropped.
pub struct Agent(Option<Child>);

impl Agent {
    /// Sends a signal, as kill(1) names it.
    pub fn signal(&self, name: &str) {
        let child = self.0.as_ref().expect("it runs");
        let status = Command::new("kill")
            .args([&format!("-{name}"), &child.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Its process.
    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it runs")
    }

    /// Waits for its end; returns the exit code, if it has one, and its standard error.
    pub fn end(mut self) -> (Option<i32>, String) {
        let child = self.0.take().expect("it runs");
        let output = child.wait_with_output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl ReceivedMessages {
    /// The rows of a channel, without instants.
    pub fn values(&self, channel: u64) -> Vec<String> {
        let rows = self.rows.get(&channel).into_iter().flatten();
        rows.map(|(_, values)| format!("{values:?}")).collect()
    }

    pub fn count(&self, channel: u64) -> usize {
        self.rows.get(&channel).map_or(0, Vec::len)
    }

    fn order(&self, word: MonitorMessage) {
        if let Some(orders) = &self.orders {
            // An agent that was killed reads nothing.
            let sent = orders.try_send(word);
            assert!(
                !matches!(sent, Err(TrySendError::Full(_))),
                "orders are read"
            );
        }
    }

    fn take(&mut self, event: ServerEvent) {
        match event {
            ServerEvent::Joined(joined) => {
                let welcome = Welcome {
                    monitor: 7,
                    acked: *self.acked.entry(joined.hello.instance).or_default(),
                    channels: self.fragments.keys().copied().collect(),
                    heartbeat_interval_ns: 20_000_000,
                    ..Welcome::default()
                };
                assert!(joined.welcome.send(Ok(welcome)).is_ok());
                for (channel, fragment) in &self.fragments {
                    let start = MonitorMessage::start(ChannelId(*channel), fragment.clone());
                    joined.orders.try_send(start).unwrap();
                }
                if self
                    .hellos
                    .last()
                    .is_none_or(|h| h.instance != joined.hello.instance)
                {
                    self.reached = 0;
                    self.hellos.push(joined.hello);
                }
                self.orders = Some(joined.orders);
                self.session = Some(joined.session);
            }
            ServerEvent::Message {
                session,
                number,
                message,
            } => {
                assert_eq!(Some(session), self.session);
                if let Some(number) = number {
                    let instance = self.hellos.last().expect("it has joined").instance;
                    let acked = self.acked.get_mut(&instance).expect("it has joined");
                    assert_eq!(number, *acked + 1, "each message arrives once, in order");
                    *acked = number;
                    self.order(MonitorMessage::Ack(number));
                }
                self.receive(message);
            }
            ServerEvent::Left { .. } => {
                self.left += 1;
                self.orders = None;
            }
            ServerEvent::Request { .. } => panic!("nobody asks"),
            ServerEvent::Refused { .. } => {}
        }
    }

    fn receive(&mut self, word: AgentMessage) {
        match word {
            AgentMessage::Rows { channel, batch } => {
                assert!(self.started.contains_key(&channel.0), "it has started");
                let rows = self.rows.entry(channel.0).or_default();
                for row in 0..batch.len() {
                    assert!(batch.ts[row] > self.reached, "not what is over");
                    let values = batch.columns.iter().map(|c| c.value(row)).collect();
                    rows.push((batch.ts[row], values));
                }
            }
            AgentMessage::Watermark(at) => {
                assert!(at > self.reached);
                self.reached = at;
            }
            AgentMessage::Started(started) => {
                self.started.insert(started.channel, started.at_ns);
            }
            AgentMessage::Failed(failed) => {
                self.failed.insert(failed.channel, failed.why);
            }
            AgentMessage::Lost(lost) => {
                *self.lost.entry(lost.channel).or_default() += lost.requests;
            }
            AgentMessage::Capabilities(_) => {}
            AgentMessage::Note(note) => self.notes.push(note),
            AgentMessage::Status(status) => self.status = Some(status),
            AgentMessage::Hosts(hosts) => self.hosts = Some(hosts),
        }
    }
}

fn receive(
    mut events: EventQueue,
    received: &Mutex<ReceivedMessages>,
    deaf: &AtomicBool,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        if deaf.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        match events.next(Duration::from_millis(20)) {
            NextEvent::Event(event) => received.lock().unwrap().take(event),
            NextEvent::Timeout => {}
            NextEvent::Ended => return,
        }
    }
}
