//! [`Agents`]: any number of agents in one thread, each with a connection of its own.
//!
//! An agent here is [`AgentCore`], which runs the fragments that the monitor orders, over events of
//! a [`Load`]; only the taps are made up. What one says on a connection that breaks is gone: it
//! dials again as a new process.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use weir_model::{Nanos, Symbol};
use weir_query::engine::EngineOptions;
use weir_query::plan::codec;
use weir_wire::exchange::{self, MessageReceiver, MessageSender};
use weir_wire::{AgentMessage, ChannelId, Dial, Hello, MonitorMessage, Status, WireError};

use super::load::{Load, STREAMS};
use weir_agent::{AgentCore, Outlet};
use weir_runtime::run_loop::wall_clock;

/// The pause between the first connections of two agents. A monitor takes 100 requests a second of
/// one that shows neither token nor certificate.
const ARRIVAL_PAUSE: Duration = Duration::from_millis(12);
/// How long an agent waits before it dials again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often an agent says how it is.
const STATUS_PAUSE: Duration = Duration::from_secs(1);
/// Words with rows whose taking is awaited, for each agent.
const AWAITED_MAX: usize = 4_096;

/// What the agents are to do.
#[derive(Clone, Debug)]
pub struct Orders {
    /// How many there are.
    pub agents: usize,
    /// Events of each in a second.
    pub events_per_second: f64,
    /// VMs of each.
    pub vms: usize,
    /// The way to the monitor.
    pub dial: Dial,
}

/// What they have done.
#[derive(Debug, Default)]
pub struct Figures {
    /// Agents that are connected now.
    pub connected: AtomicU64,
    /// How often one was refused or lost its connection.
    pub failures: AtomicU64,
    /// Fragments that run, on all agents.
    pub fragments: AtomicU64,
    /// Events that were made.
    pub events: AtomicU64,
    /// Rows that fragments gave.
    pub rows_said: AtomicU64,
    /// Those of them that the monitor needs no more.
    pub rows_taken: AtomicU64,
    /// Words that were said.
    pub words: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// The furthest that an agent's words have been behind its clock, in ns.
    pub behind_ns_max: AtomicU64,
    last_failure: std::sync::Mutex<Option<String>>,
}

impl Figures {
    fn failed(&self, error: &WireError) {
        add(&self.failures, 1);
        let mut last = self.last_failure.lock().expect("nobody panics here");
        *last = Some(error.to_string());
    }

    /// Why the last agent was refused or lost its connection.
    pub fn last_failure(&self) -> Option<String> {
        self.last_failure
            .lock()
            .expect("nobody panics here")
            .clone()
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// The agents; they go when this is dropped.
pub struct Agents {
    pub figures: Arc<Figures>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agents {
    /// Starts to dial, one agent after the other.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(orders: Orders) -> std::io::Result<Agents> {
        let figures = Arc::new(Figures::default());
        let end = Arc::new(AtomicBool::new(false));
        let (told, ending) = (figures.clone(), end.clone());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            let all = LocalSet::new();
            let load = Load::new(orders.vms);
            let orders = Arc::new(orders);
            for number in 0..orders.agents {
                let (orders, load, told) = (orders.clone(), load.clone(), told.clone());
                all.spawn_local(live(number, orders, load, told));
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
            // If it panicked it has said so.
            let _ = thread.join();
        }
    }
}

/// One agent: connected, and connected again, for ever.
async fn live(number: usize, orders: Arc<Orders>, load: Arc<Load>, figures: Arc<Figures>) {
    sleep(ARRIVAL_PAUSE * number as u32).await;
    for process in 1.. {
        let hello = Hello {
            host: format!("sim{}", number + 1),
            instance: wall_clock() as u64 ^ (number as u64) << 40 ^ process,
            version: format!("weir simulate {}", env!("CARGO_PKG_VERSION")),
            ..Hello::default()
        };
        let error = match exchange::join(&orders.dial, &hello).await {
            Ok((welcome, sender, receiver)) => {
                add(&figures.connected, 1);
                let mut agent = Agent::new(&hello.host, &orders, load.clone(), &figures, sender);
                // Agents tick at different times, as those of different hosts do.
                let part = number as f64 / orders.agents as f64;
                let error = agent
                    .speak(welcome.heartbeat_interval, part, receiver)
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

/// An agent that was welcomed.
struct Agent<'a> {
    core: AgentCore,
    load: Arc<Load>,
    outlets: Vec<Outlet>,
    sender: MessageSender,
    figures: &'a Figures,
    events_per_second: f64,
    /// Which of [`STREAMS`] each fragment reads.
    reads: HashMap<ChannelId, [bool; 2]>,
    /// What is left of an event, and the next one's number.
    event_part: f64,
    event_next: u64,
    /// Up to here events were made.
    at: Nanos,
    /// Words with rows that the monitor has not taken: number and rows.
    awaited: VecDeque<(u64, u64)>,
    bytes_counted: u64,
    /// Bytes of each fragment's rows.
    sent: HashMap<ChannelId, u64>,
    status_at: Instant,
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
        let outlets = (0..STREAMS.len()).map(|stream| load.outlet(stream, host));
        let now = wall_clock();
        let mut core = AgentCore::new(EngineOptions::default());
        core.reached(now);
        Agent {
            core,
            outlets: outlets.collect(),
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
        }
    }

    /// Does what the monitor says until the connection is gone.
    async fn speak(
        &mut self,
        heartbeat: Nanos,
        part: f64,
        mut receiver: MessageReceiver,
    ) -> WireError {
        // The protocol has bounds for it.
        let pace = |ns: Nanos| Duration::from_nanos(ns as u64);
        let mut tick = ticks(pace(heartbeat), part);
        loop {
            tokio::select! {
                _ = tick.tick() => match self.tick().await {
                    Ok(()) => {}
                    Err(error) => return receiver.receive().await.err().unwrap_or(error),
                },
                heard = receiver.receive() => match heard {
                    Ok(MonitorMessage::HeartbeatInterval(ns)) => tick = ticks(pace(ns), part),
                    Ok(word) => self.obey(word),
                    Err(error) => return error,
                },
            }
        }
    }

    fn obey(&mut self, word: MonitorMessage) {
        match word {
            MonitorMessage::Start { channel, fragment } => {
                let plan = codec::decode(&fragment).map_err(|e| e.to_string());
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
            MonitorMessage::Stop { channel } => {
                if self.reads.remove(&channel).is_some() {
                    self.figures.fragments.fetch_sub(1, Ordering::Relaxed);
                }
                self.sent.remove(&channel);
                self.core.stop(channel);
            }
            MonitorMessage::Ack { number } => {
                while self.awaited.front().is_some_and(|(n, _)| *n <= number) {
                    let (_, rows) = self.awaited.pop_front().expect("there is a first");
                    add(&self.figures.rows_taken, rows);
                }
            }
            MonitorMessage::HeartbeatInterval(_) => {
                unreachable!("whoever has the ticks sees to it")
            }
        }
    }

    /// Makes the events since the last tick, and says what the fragments give.
    async fn tick(&mut self) -> Result<(), WireError> {
        let now = wall_clock().max(self.at + 1);
        self.make(now);
        self.core.reached(now);
        let mut words = Vec::new();
        self.core.step(&mut |word| words.push(word));
        if self.status_at <= Instant::now() {
            self.status_at += STATUS_PAUSE;
            words.push(AgentMessage::Status(self.status()));
        }
        for word in words {
            let (channel, rows) = match &word {
                AgentMessage::Rows { channel, batch } => (Some(*channel), batch.len() as u64),
                _ => (None, 0),
            };
            let bytes_before = self.sender.bytes();
            self.sender.send(word).await?;
            if let Some(channel) = channel.filter(|c| self.reads.contains_key(c)) {
                let sent = self.sent.entry(channel).or_default();
                *sent += self.sender.bytes() - bytes_before;
            }
            add(&self.figures.words, 1);
            add(&self.figures.rows_said, rows);
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

    /// Makes the events up to `now`. Nobody's are not made.
    fn make(&mut self, now: Nanos) {
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
            // The pool's end may cut a piece; what is left of the time goes to the rest.
            let done = (total - left) as f64 / total as f64;
            let from = self.at + ((now - self.at) as f64 * done) as Nanos;
            let mut made = left;
            for &stream in &read {
                let piece = self.load.piece(stream, self.event_next, left, from, now);
                made = piece.len();
                let rows = self.outlets[stream].rows(&piece, now, |ts| ts);
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

/// A tick every `pace`, the first after a part of it. An agent that is late does not catch up in
/// small steps.
fn ticks(pace: Duration, part: f64) -> tokio::time::Interval {
    let mut ticks = interval_at(Instant::now() + pace.mul_f64(part), pace);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}
