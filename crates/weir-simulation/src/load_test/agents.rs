//! [`Agents`]: any number of agents in one thread, each with a connection of its own.
//!
//! An agent here is [`AgentCore`], which runs the fragments that the monitor sends, over events of
//! a [`Load`]; only the taps are replaced. Messages on a connection that breaks are lost: the agent
//! connects again as a new process.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use weir_model::{Catalog, Nanos, Symbol};
use weir_query::engine::EngineOptions;
use weir_query::plan::wire;
use weir_wire::exchange::{self, MessageReceiver, MessageSender};
use weir_wire::{AgentMessage, ChannelId, Dial, Hello, MonitorMessage, Status, WireError};

use super::load::{Load, STREAMS};
use weir_agent::{AgentCore, RowConversion};
use weir_runtime::run_loop::wall_clock;

/// The pause between the first connections of two agents. A monitor accepts 100 requests per second
/// from a peer without token and certificate.
const ARRIVAL_PAUSE: Duration = Duration::from_millis(12);
/// The pause before an agent connects again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The interval of status messages, unless heartbeats are rarer.
const STATUS_PAUSE: Duration = Duration::from_secs(1);
/// The maximum number of messages with rows that wait for an ack, per agent.
const AWAITED_MAX: usize = 4_096;

/// The configuration of the agents.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Their number.
    pub agents: usize,
    /// Events of each per second.
    pub events_per_second: f64,
    /// VMs of each.
    pub vms: usize,
    /// How to reach the monitor.
    pub dial: Dial,
}

/// The counters of all agents.
#[derive(Debug, Default)]
pub struct Figures {
    /// Agents that are connected now.
    pub connected: AtomicU64,
    /// Connections that were rejected or broke.
    pub failures: AtomicU64,
    /// Fragments that run, on all agents.
    pub fragments: AtomicU64,
    /// Generated events.
    pub events: AtomicU64,
    /// Rows that fragments emitted.
    pub rows_emitted: AtomicU64,
    /// Those of them that the monitor has acknowledged.
    pub rows_acked: AtomicU64,
    /// Messages that were sent.
    pub messages: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// The greatest delay of an agent's messages relative to its clock, in ns.
    pub behind_ns_max: AtomicU64,
    last_failure: std::sync::Mutex<Option<String>>,
}

impl Figures {
    fn failed(&self, error: &WireError) {
        add(&self.failures, 1);
        let mut last = self.last_failure.lock().expect("no panic while held");
        *last = Some(error.to_string());
    }

    /// The reason of the last failure.
    pub fn last_failure(&self) -> Option<String> {
        self.last_failure
            .lock()
            .expect("no panic while held")
            .clone()
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// The agents. They end when this is dropped.
pub struct Agents {
    /// Their counters.
    pub figures: Arc<Figures>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agents {
    /// Starts to connect, one agent after the other.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(orders: Orders) -> std::io::Result<Agents> {
        let figures = Arc::new(Figures::default());
        let end = Arc::new(AtomicBool::new(false));
        let (shared, ending) = (figures.clone(), end.clone());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            let all = LocalSet::new();
            let load = Load::new(orders.vms);
            let orders = Arc::new(orders);
            for number in 0..orders.agents {
                let (orders, load, figures) = (orders.clone(), load.clone(), shared.clone());
                all.spawn_local(live(number, orders, load, figures));
            }
            let ended = async {
                while !ending.load(Ordering::Relaxed) {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            runtime.block_on(all.run_until(ended));
        };
        let thread = std::thread::Builder::new().name("weir-simulated".to_owned());
        Ok(Agents {
            figures,
            end,
            thread: Some(thread.spawn(run)?),
        })
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}

/// One agent: connects, again and again.
async fn live(number: usize, orders: Arc<Orders>, load: Arc<Load>, figures: Arc<Figures>) {
    sleep(ARRIVAL_PAUSE * number as u32).await;
    for process in 1.. {
        let hello = Hello {
            host: format!("sim{}", number + 1),
            instance: wall_clock() as u64 ^ (number as u64) << 40 ^ process,
            program: format!("weir-simulation {}", env!("CARGO_PKG_VERSION")),
            ..Hello::default()
        };
        let error = match exchange::join(&orders.dial, &hello).await {
            Ok((welcome, sender, receiver)) => {
                add(&figures.connected, 1);
                let mut agent = Agent::new(&hello.host, &orders, load.clone(), &figures, sender);
                // Agents tick at different times, as those of different hosts do.
                let part = number as f64 / orders.agents as f64;
                let error = agent
                    .serve(welcome.heartbeat_interval_ns, part, receiver)
                    .await;
                figures.connected.fetch_sub(1, Ordering::Relaxed);
                let ended = agent.reads.len() as u64;
                figures.fragments.fetch_sub(ended, Ordering::Relaxed);
                error
            }
            Err(error) => error,
        };
        figures.failed(&error);
        sleep(RETRY_PAUSE).await;
    }
}

/// A connected agent.
struct Agent<'a> {
    core: AgentCore,
    load: Arc<Load>,
    conversions: Vec<RowConversion>,
    sender: MessageSender,
    figures: &'a Figures,
    events_per_second: f64,
    /// Which of [`STREAMS`] each fragment reads.
    reads: HashMap<ChannelId, [bool; 2]>,
    /// The fraction of the next event, and the number of the next one.
    event_part: f64,
    event_next: u64,
    /// The time up to which events were generated.
    at: Nanos,
    /// Messages with rows that are not acknowledged: number and rows.
    awaited: VecDeque<(u64, u64)>,
    bytes_counted: u64,
    /// Bytes of each fragment's rows.
    sent: HashMap<ChannelId, u64>,
    status_at: Instant,
    heartbeat: Duration,
}

impl<'a> Agent<'a> {
    fn new(
        host: &str,
        orders: &Orders,
        load: Arc<Load>,
        figures: &'a Figures,
        sender: MessageSender,
    ) -> Agent<'a> {
        let host = Symbol::try_new(host).expect("a short name becomes a symbol");
        let conversions = (0..STREAMS.len()).map(|stream| load.conversion(stream, host));
        let now = wall_clock();
        let mut core = AgentCore::new(EngineOptions::default());
        core.reached(now);
        Agent {
            core,
            conversions: conversions.collect(),
            load,
            sender,
            figures,
            events_per_second: orders.events_per_second,
            reads: HashMap::new(),
            event_part: 0.0,
            event_next: u64::from(host.id()),
            at: now,
            awaited: VecDeque::new(),
            bytes_counted: 0,
            sent: HashMap::new(),
            status_at: Instant::now(),
            heartbeat: STATUS_PAUSE,
        }
    }

    /// Serves the monitor until the connection breaks.
    async fn serve(
        &mut self,
        heartbeat: Nanos,
        part: f64,
        mut receiver: MessageReceiver,
    ) -> WireError {
        // The protocol bounds it.
        let pace = |ns: Nanos| Duration::from_nanos(ns as u64);
        self.heartbeat = pace(heartbeat);
        let mut tick = ticks(self.heartbeat, part);
        loop {
            tokio::select! {
                _ = tick.tick() => match self.tick().await {
                    Ok(()) => {}
                    Err(error) => return receiver.receive().await.err().unwrap_or(error),
                },
                received = receiver.receive() => match received {
                    Ok(MonitorMessage::HeartbeatInterval(ns)) => {
                        self.heartbeat = pace(ns);
                        tick = ticks(self.heartbeat, part);
                    }
                    Ok(message) => self.apply(message),
                    Err(error) => return error,
                },
            }
        }
    }

    fn apply(&mut self, message: MonitorMessage) {
        match message {
            MonitorMessage::Start(start) => {
                let channel = ChannelId(start.channel);
                let plan =
                    wire::decode(&start.fragment, &Catalog::builtin()).map_err(|e| e.to_string());
                let known = |name: &str| STREAMS.iter().any(|s| s.eq_ignore_ascii_case(name));
                match plan {
                    Ok(plan) if plan.sources().iter().all(|d| known(&d.name)) => {
                        let named = |s: &str| {
                            plan.sources()
                                .iter()
                                .any(|d| d.name.eq_ignore_ascii_case(s))
                        };
                        if self.reads.insert(channel, STREAMS.map(named)).is_none() {
                            add(&self.figures.fragments, 1);
                        }
                        self.core.start(channel, &plan);
                    }
                    Ok(_) => {
                        let why = format!("simulated agents have {} only", STREAMS.join(" and "));
                        self.core.refuse(channel, why);
                    }
                    Err(why) => self.core.refuse(channel, why),
                }
            }
            MonitorMessage::Stop(channel) => {
                let channel = ChannelId(channel);
                if self.reads.remove(&channel).is_some() {
                    self.figures.fragments.fetch_sub(1, Ordering::Relaxed);
                }
                self.sent.remove(&channel);
                self.core.stop(channel);
            }
            MonitorMessage::Ack(number) => {
                while self.awaited.front().is_some_and(|(n, _)| *n <= number) {
                    let (_, rows) = self.awaited.pop_front().expect("there is a first");
                    add(&self.figures.rows_acked, rows);
                }
            }
            // There is no host on which they could be carried out.
            MonitorMessage::Actions(_) => {}
            MonitorMessage::HeartbeatInterval(_)
            | MonitorMessage::Welcome(_)
            | MonitorMessage::Pong(_) => {
                unreachable!("the caller has the ticks")
            }
        }
    }

    /// Generates the events since the last tick, and sends what the fragments emit.
    async fn tick(&mut self) -> Result<(), WireError> {
        let now = wall_clock().max(self.at + 1);
        self.generate(now);
        self.core.reached(now);
        let mut messages = Vec::new();
        self.core.step(&mut |message| messages.push(message));
        if self.status_at <= Instant::now() {
            self.status_at += STATUS_PAUSE.max(self.heartbeat);
            messages.push(AgentMessage::Status(self.status()));
        }
        for message in messages {
            let (channel, rows) = match &message {
                AgentMessage::Rows { channel, batch } => (Some(*channel), batch.len() as u64),
                _ => (None, 0),
            };
            let bytes_before = self.sender.bytes();
            self.sender.send(message).await?;
            if let Some(channel) = channel.filter(|c| self.reads.contains_key(c)) {
                let sent = self.sent.entry(channel).or_default();
                *sent += self.sender.bytes() - bytes_before;
            }
            add(&self.figures.messages, 1);
            add(&self.figures.rows_emitted, rows);
            if rows > 0 && self.awaited.len() < AWAITED_MAX {
                self.awaited.push_back((self.sender.number(), rows));
            }
        }
        let bytes = self.sender.bytes();
        add(&self.figures.bytes, bytes - self.bytes_counted);
        self.bytes_counted = bytes;
        let behind = (wall_clock() - now).max(0) as u64;
        self.figures
            .behind_ns_max
            .fetch_max(behind, Ordering::Relaxed);
        Ok(())
    }

    /// Generates the events up to `now` of the streams that fragments read.
    fn generate(&mut self, now: Nanos) {
        let seconds = (now - self.at) as f64 / 1e9;
        self.event_part += seconds * self.events_per_second;
        let mut left = self.event_part.floor() as usize;
        self.event_part -= left as f64;
        let read = |stream: usize| self.reads.values().any(|reads| reads[stream]);
        let read: Vec<usize> = (0..STREAMS.len()).filter(|s| read(*s)).collect();
        if read.is_empty() {
            left = 0;
        }
        add(&self.figures.events, left as u64);
        let total = left;
        while left > 0 {
            // The end of the pool may cut a piece; the rest gets the remaining time.
            let done = (total - left) as f64 / total as f64;
            let from = self.at + ((now - self.at) as f64 * done) as Nanos;
            let mut made = left;
            for &stream in &read {
                let piece = self.load.piece(stream, self.event_next, left, from, now);
                made = piece.len();
                let rows = self.conversions[stream].rows(&piece, now, |ts| ts);
                self.core.push(STREAMS[stream], rows);
            }
            self.event_next += made as u64;
            left -= made;
        }
        self.at = now;
    }

    fn status(&self) -> Status {
        Status {
            requests_per_second: self.events_per_second,
            kept_share: 1.0,
            channels: self
                .core
                .costs(|channel| self.sent.get(&channel).copied().unwrap_or(0)),
            tallies: self.core.tallies().collect(),
            ..Status::default()
        }
    }
}

/// A tick every `pace`, the first after a part of it. Late ticks are skipped.
fn ticks(pace: Duration, part: f64) -> tokio::time::Interval {
    let mut ticks = interval_at(Instant::now() + pace.mul_f64(part), pace);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}
