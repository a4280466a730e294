//! [`Process`]: one process of an agent: the agent's core and the work of its uplink, without
//! threads.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;
use weir_agent::AgentCore;
use weir_model::{Batch, Nanos};
use weir_query::engine::EngineOptions;
use weir_query::plan::wire;
use weir_wire::clock::{Clock, Exchange};
use weir_wire::frame::texts::TextTable;
use weir_wire::frame::{self, Compression, FrameError};
use weir_wire::message::{AgentBody, FlightData, FromAgent, FromMonitor, Ping};
use weir_wire::outbox::spool::{DiskResult, DiskTask, segment_bytes};
use weir_wire::outbox::{EncodedMessage, Outbox};
use weir_wire::{AgentMessage, ChannelId, EarlierProcess, Hello, MonitorMessage, Status};

use crate::network::LinkId;
use crate::queries::catalog;
use crate::scenario::Scenario;
use crate::{MS, SECOND};

/// The interval of a process's pings once its clock is synchronised.
const PING_EVERY: Nanos = SECOND;

/// The connection of a process.
struct Connection {
    link: LinkId,
    /// It has received the welcome.
    is_welcomed: bool,
    /// Orders that wait until the clock is synchronised, the welcome first.
    orders: VecDeque<Order>,
    /// The number of the next message, until it is sent.
    resume: Option<u64>,
    texts_sent: u32,
    ping_at: Nanos,
    pings: VecDeque<Nanos>,
}

/// A message that the process has received.
enum Order {
    Welcome(Vec<ChannelId>),
    Message(MonitorMessage),
}

/// One process of an agent.
pub struct Process {
    /// The random number that identifies it to the monitor.
    pub instance: u64,
    /// The agent's core, which runs the fragments.
    pub core: AgentCore,
    /// The estimate of the monitor's clock.
    pub clock: Clock,
    /// It has queued its last message, and ends when that is delivered.
    pub is_ending: bool,
    /// The monitor has acknowledged a message, and needs the tallies of earlier processes no more.
    pub has_acks: bool,
    /// The number of channels that the monitor has requested.
    channels: usize,
    earlier: Vec<EarlierProcess>,
    outbox: Outbox,
    texts: TextTable,
    status: Option<AgentBody>,
    /// The column of a channel's rows that holds the number of requests of each row.
    counts: BTreeMap<ChannelId, Option<usize>>,
    /// Segments on a disk that is lost with the process.
    disk: BTreeMap<u64, VecDeque<EncodedMessage>>,
    disk_failures_percent: u32,
    connection: Option<Connection>,
}

impl Process {
    /// A process with the tallies of earlier ones.
    pub fn new(instance: u64, earlier: Vec<EarlierProcess>, scenario: &Scenario) -> Process {
        Process {
            instance,
            core: AgentCore::new(EngineOptions::default()),
            clock: Clock::new(),
            is_ending: false,
            has_acks: false,
            channels: usize::MAX,
            earlier,
            outbox: Outbox::new(scenario.capacity),
            texts: TextTable::default(),
            status: None,
            counts: BTreeMap::new(),
            disk: BTreeMap::new(),
            disk_failures_percent: scenario.disk_failures_percent,
            connection: None,
        }
    }

    /// Its connection, if it is connected.
    pub fn link(&self) -> Option<LinkId> {
        self.connection.as_ref().map(|c| c.link)
    }

    /// True if it runs all channels that the monitor has requested, so that every row is observed.
    pub fn is_running(&self) -> bool {
        self.counts.len() == self.channels && self.clock.is_synchronised()
    }

    /// True if it is connected and everything was sent.
    pub fn has_sent_all(&mut self) -> bool {
        let connected = self.connection.as_ref().is_some_and(|c| c.is_welcomed);
        connected && !self.outbox.has_next()
    }

    /// True if no message is waiting to be delivered.
    pub fn is_delivered(&self) -> bool {
        self.outbox.waiting().messages == 0
    }

    /// Opens a new connection; returns the first message.
    pub fn dial(&mut self, host: &str, link: LinkId, scenario: &Scenario) -> FlightData {
        self.connection = Some(Connection {
            link,
            is_welcomed: false,
            orders: VecDeque::new(),
            resume: None,
            texts_sent: 0,
            ping_at: Nanos::MIN,
            pings: VecDeque::new(),
        });
        let hello = Hello {
            host: host.to_owned(),
            instance: self.instance,
            program: "simulation".into(),
            earlier: self.earlier.clone(),
            held_bytes_max: scenario.capacity.sent_bytes() as u64,
            ..Hello::default()
        };
        FromAgent::hello(hello).expect("names and counts are within their bounds")
    }

    /// Handles the end of the connection.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    // ---- Received messages --------------------------------------------------------------------

    /// Receives a message of the monitor; `now` is the time of the host's clock.
    pub fn receive(&mut self, data: &FlightData, now: Nanos) {
        let received = FromMonitor::read(data).expect("the monitor keeps to the protocol");
        assert!(!received.has_unknown, "both sides have the same version");
        let Some(connection) = &mut self.connection else {
            return;
        };
        let body = received.message.body;
        let body = body.expect("both sides have the same version");
        match body {
            MonitorMessage::Welcome(welcome) => {
                welcome.version().expect("a welcome of this version");
                let resume = self.outbox.resume(welcome.acked);
                let resume = resume.expect("the monitor has what was sent");
                assert_eq!(
                    resume,
                    welcome.acked + 1,
                    "what is acknowledged is not wanted again"
                );
                connection.is_welcomed = true;
                connection.resume = Some(resume);
                let channels = welcome.channels.into_iter().map(ChannelId).collect();
                connection.orders.push_back(Order::Welcome(channels));
            }
            MonitorMessage::Pong(pong) => {
                if let Some(at) = connection.pings.iter().position(|p| *p == pong.origin_ns) {
                    connection.pings.remove(at);
                    self.clock.update(Exchange {
                        left: pong.origin_ns,
                        came: pong.receive_ns,
                        answered: pong.transmit_ns,
                        back: now,
                    });
                }
            }
            MonitorMessage::Ack(number) => {
                assert!(self.outbox.ack(number), "{number} was sent");
                self.has_acks = true;
            }
            message => connection.orders.push_back(Order::Message(message)),
        }
    }

    /// Executes the orders of the monitor; `now` is the estimated time of the monitor's clock.
    /// Returns whether a channel was started.
    pub fn follow_orders(&mut self, now: Nanos) -> bool {
        let mut has_started = false;
        if !self.clock.is_synchronised() || self.is_ending {
            return has_started;
        }
        while let Some(order) = self.connection.as_mut().and_then(|c| c.orders.pop_front()) {
            match order {
                Order::Welcome(channels) => {
                    self.channels = channels.len();
                    let known: Vec<ChannelId> = self.counts.keys().copied().collect();
                    for channel in known.into_iter().filter(|c| !channels.contains(c)) {
                        self.stop(channel);
                    }
                }
                Order::Message(MonitorMessage::Start(start)) => {
                    let channel = ChannelId(start.channel);
                    let plan = wire::decode(&start.fragment, &catalog()).expect("a sound fragment");
                    let known = self.counts.insert(channel, plan.requests_column());
                    if known.is_none() {
                        // No row has been received before all channels run.
                        self.core.reached(now);
                        has_started = true;
                    }
                    self.core.start(channel, &plan);
                }
                Order::Message(MonitorMessage::Stop(channel)) => self.stop(ChannelId(channel)),
                Order::Message(_) => {}
            }
        }
        has_started
    }

    fn stop(&mut self, channel: ChannelId) {
        self.counts.remove(&channel);
        self.core.stop(channel);
    }

    // ---- Sent messages ------------------------------------------------------------------------

    /// Advances to `at`; all earlier rows have been received.
    pub fn step(&mut self, at: Nanos) {
        for (channel, requests) in self.outbox.take_dropped() {
            self.core.lost(channel, requests);
        }
        self.core.reached(at);
        let mut messages = Vec::new();
        self.core.step(&mut |message| messages.push(message));
        self.put_all(messages);
    }

    /// Stops the process: sends its remaining messages.
    pub fn end(&mut self, at: Nanos) {
        self.step(at);
        let mut messages = Vec::new();
        self.core.end(at, &mut |message| messages.push(message));
        messages.push(AgentMessage::Watermark(Nanos::MAX));
        self.put_all(messages);
        self.is_ending = true;
    }

    /// Reports its status.
    pub fn report(&mut self) {
        let status = Status {
            tallies: self.core.tallies().collect(),
            ..Status::default()
        };
        let body = AgentBody::try_from(AgentMessage::Status(status));
        self.status = Some(body.expect("a status within its bounds"));
    }

    fn put_all(&mut self, messages: Vec<AgentMessage>) {
        for message in messages {
            match message {
                AgentMessage::Rows { channel, batch } => self.put_rows(channel, &batch),
                message => {
                    let body = AgentBody::try_from(message).expect("a message within its bounds");
                    self.outbox.push(EncodedMessage::message(body));
                }
            }
        }
    }

    fn put_rows(&mut self, channel: ChannelId, batch: &Batch) {
        let counts = self.counts.get(&channel).copied().flatten();
        match frame::encode(channel, batch, &mut self.texts, Compression::None) {
            Ok(mut frame) => {
                if counts.is_some() {
                    frame.head.requests = batch.requests(counts);
                }
                self.outbox
                    .push(EncodedMessage::rows(frame, self.texts.len()));
            }
            Err(FrameError::TooLong | FrameError::TextBudget) if batch.len() > 1 => {
                let half = batch.len() / 2;
                self.put_rows(channel, &batch.slice(0, half));
                self.put_rows(channel, &batch.slice(half, batch.len() - half));
            }
            Err(error) => panic!("rows of a fragment can be sent: {error:?}"),
        }
    }

    /// The next messages to be sent while there is room for `room`; `now` is the time of the host's
    /// clock.
    pub fn send(&mut self, now: Nanos, room: usize) -> Vec<FlightData> {
        let mut sent = Vec::new();
        let Some(connection) = self.connection.as_mut().filter(|c| c.is_welcomed) else {
            return sent;
        };
        if let Some(number) = connection.resume.take() {
            sent.push(FromAgent::data(AgentBody::Resume(number)));
        }
        if connection.ping_at <= now {
            let is_known = self.clock.is_synchronised();
            connection.ping_at = now + if is_known { PING_EVERY } else { 40 * MS };
            connection.pings.push_back(now);
            sent.push(FromAgent::data(AgentBody::Ping(Ping { origin_ns: now })));
        }
        sent.extend(self.status.take().map(FromAgent::data));
        while sent.len() < room {
            let Some((number, message)) = self.outbox.next_message() else {
                break;
            };
            while connection.texts_sent < message.texts {
                let body = self.texts.from(connection.texts_sent);
                connection.texts_sent += body.texts.len() as u32;
                sent.push(FromAgent::data(AgentBody::Texts(body)));
            }
            sent.push(message.data(number));
        }
        sent
    }

    /// Executes a disk task of the outbox; some of them fail.
    pub fn use_disk(&mut self, random: &mut Rng) {
        while let Some(task) = self.outbox.next_disk_task() {
            let fails = random.u32(0..100) < self.disk_failures_percent;
            let failure = || std::io::Error::other("the simulated disk fails");
            let result = match task {
                DiskTask::Write { number, .. } if fails => {
                    DiskResult::Written(number, Err(failure()))
                }
                DiskTask::Write { number, messages } => {
                    let bytes = segment_bytes(messages.iter());
                    self.disk.insert(number, messages.into());
                    DiskResult::Written(number, Ok(bytes))
                }
                DiskTask::Read { number, .. } => {
                    let messages = self.disk.remove(&number).filter(|_| !fails);
                    DiskResult::Read(number, messages.ok_or_else(failure))
                }
                DiskTask::Remove(numbers) => {
                    for number in numbers {
                        self.disk.remove(&number);
                    }
                    DiskResult::Removed
                }
            };
            self.outbox.finish_disk_task(result);
        }
    }
}
