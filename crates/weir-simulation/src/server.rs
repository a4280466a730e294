//! [`Server`]: the monitor and what its server does with each connection, without threads.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

use tokio::sync::{mpsc, oneshot};
use weir_model::{Batch, Nanos};
use weir_monitor::{FileSink, Monitor, Publisher, PublisherLimits};
use weir_runtime::plans;
use weir_sink::{InstantUnit, Sink, SinkError};
use weir_wire::frame::texts::TextBudgets;
use weir_wire::message::{FlightData, FromAgent, FromMonitor};
use weir_wire::{
    AgentMessage, ChannelId, Incoming, Intake, Joined, MonitorMessage, Peer, ServerEvent, SessionId,
};

use crate::network::LinkId;
use crate::queries::Query;
use crate::scenario::Scenario;

/// More than any query of a simulation gives.
const PUBLISHER_LIMITS: PublisherLimits = PublisherLimits {
    clients_max: 100,
    backlog_bytes_max: 64 << 20,
    snapshot_bytes_max: 64 << 20,
    rows_per_second_max: 1 << 30,
};

/// Orders that wait for one agent.
const ORDERS_MAX: usize = 64;

/// A connection whose agent was welcomed.
struct Session {
    host: String,
    instance: u64,
    intake: Intake,
    orders: mpsc::Receiver<MonitorMessage>,
}

/// What a process has delivered to the monitor.
#[derive(Clone, Debug, Default)]
pub struct Delivered {
    /// The last watermark.
    pub watermark: Nanos,
    /// When the last row of each channel was.
    pub rows: BTreeMap<ChannelId, Nanos>,
}

/// The monitor's process.
pub struct Server {
    /// The monitor.
    pub monitor: Monitor,
    /// What processes have delivered, by their instance.
    pub delivered: BTreeMap<u64, Delivered>,
    /// The queries that failed, by name.
    pub failed: BTreeMap<String, String>,
    sessions: BTreeMap<LinkId, Session>,
    budgets: TextBudgets,
}

/// What the server does with a connection.
pub enum Action {
    /// Sends a message.
    Send(LinkId, FlightData),
    /// Closes it.
    Close(LinkId),
}

/// A sink that appends lines to a file: instant, weight, row.
struct Lines(File);

impl Sink for Lines {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut text = String::new();
        for row in 0..batch.len() {
            let (ts, weight) = (batch.ts[row], batch.weight(row));
            text += &format!("{ts} {weight} {:?}\n", batch.row(row));
        }
        self.0
            .write_all(text.as_bytes())
            .expect("a file of the simulation");
        Ok(())
    }
}

impl Server {
    /// The monitor of a scenario, as its state directory has it, with all queries started.
    pub fn start(dir: &Path, scenario: &Scenario, queries: &[Query], now: Nanos) -> Server {
        let options = scenario.options.clone();
        let monitor = Monitor::open_without_thread(dir, options, now).expect("a state directory");
        let mut server = Server {
            monitor,
            delivered: BTreeMap::new(),
            failed: BTreeMap::new(),
            sessions: BTreeMap::new(),
            budgets: TextBudgets::default(),
        };
        for (number, query) in queries.iter().enumerate() {
            let name = format!("q{number}");
            let path = dir.join(&name);
            let saved = server.monitor.saved(&name);
            let bytes = saved.map_or(0, |saved| saved.positions[0].bytes);
            let file = OpenOptions::new().create(true).append(true).open(&path);
            let file = file.expect("a file of the simulation");
            file.set_len(bytes).expect("a file of the simulation");
            let answer = plans::answer(&query.cut.monitor, InstantUnit::Nanoseconds, false, false);
            let sink = FileSink::new(path, Box::new(Lines(file)));
            let publisher = Publisher::new(answer, PUBLISHER_LIMITS, vec![sink]);
            let started = server
                .monitor
                .start(&name, &query.cut, true, publisher, now);
            started.expect("the state directory can be written");
        }
        server
    }

    /// Takes in a message of an agent.
    pub fn receive(&mut self, link: LinkId, data: &FlightData, now: Nanos) -> Vec<Action> {
        let Some(session) = self.sessions.get_mut(&link) else {
            return self.join(link, data, now);
        };
        let incoming = session.intake.receive(data, now);
        match incoming.expect("the agent keeps to the protocol") {
            Incoming::Message(number, message) => {
                let what = match &message {
                    AgentMessage::Rows { channel, batch } => {
                        batch.ts.last().map(|ts| (Some(*channel), *ts))
                    }
                    AgentMessage::Watermark(at) => Some((None, *at)),
                    _ => None,
                };
                let event = ServerEvent::Message {
                    session: SessionId(link),
                    number,
                    message,
                };
                assert!(self.monitor.take(event, now).is_none());
                self.note(link, number, what);
                self.orders(now)
            }
            Incoming::Pong(data) => vec![Action::Send(link, *data)],
            Incoming::Missing { .. } => panic!("what is acknowledged is not wanted again"),
            Incoming::Ignored => Vec::new(),
        }
    }

    fn join(&mut self, link: LinkId, data: &FlightData, now: Nanos) -> Vec<Action> {
        let hello = FromAgent::read_hello(data).expect("an agent begins with hello");
        let (host, instance) = (hello.host.clone(), hello.instance);
        let (welcome, mut answer) = oneshot::channel();
        let (sender, orders) = mpsc::channel(ORDERS_MAX);
        let joined = Joined {
            session: SessionId(link),
            peer: Peer::Tcp((Ipv4Addr::LOCALHOST, 1).into()),
            hello,
            welcome,
            orders: sender,
        };
        assert!(
            self.monitor
                .take(ServerEvent::Joined(joined), now)
                .is_none()
        );
        let Ok(welcome) = answer.try_recv().expect("it answers at once") else {
            return vec![Action::Close(link)];
        };
        let intake = Intake::new(&welcome, self.budgets.of(&host));
        let session = Session {
            host,
            instance,
            intake,
            orders,
        };
        self.sessions.insert(link, session);
        let mut actions = vec![Action::Send(link, FromMonitor::welcome(welcome))];
        actions.extend(self.orders(now));
        actions
    }

    /// A connection is gone.
    pub fn leave(&mut self, link: LinkId, now: Nanos) -> Vec<Action> {
        if self.sessions.remove(&link).is_some() {
            let event = ServerEvent::Left {
                session: SessionId(link),
                why: "cut".into(),
            };
            assert!(self.monitor.take(event, now).is_none());
        }
        self.orders(now)
    }

    /// Advances time.
    pub fn tick(&mut self, now: Nanos) -> Vec<Action> {
        self.monitor.tick(now);
        let failed = self.monitor.take_failed().into_iter();
        self.failed
            .extend(failed.map(|failed| (failed.name, failed.error.message)));
        self.orders(now)
    }

    /// The requests of the monitor to the agents. A connection that it closed ends.
    fn orders(&mut self, now: Nanos) -> Vec<Action> {
        let (mut actions, mut gone) = (Vec::new(), Vec::new());
        for (link, session) in &mut self.sessions {
            loop {
                match session.orders.try_recv() {
                    Ok(message) => {
                        actions.push(Action::Send(*link, FromMonitor::data(message)));
                    }
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => {
                        gone.push(*link);
                        break;
                    }
                }
            }
        }
        for link in gone {
            actions.push(Action::Close(link));
            actions.extend(self.leave(link, now));
        }
        actions
    }

    /// Notes what a process delivered by a message, if the monitor took it in.
    fn note(
        &mut self,
        link: LinkId,
        number: Option<u64>,
        what: Option<(Option<ChannelId>, Nanos)>,
    ) {
        let (Some(session), Some(number), Some((channel, at))) =
            (self.sessions.get(&link), number, what)
        else {
            return;
        };
        let mut agents = self.monitor.agents();
        let agent = agents.find(|agent| agent.host.as_str() == session.host);
        if agent.is_none_or(|a| a.instance != session.instance || a.seen < number) {
            return;
        }
        let delivered = self.delivered.entry(session.instance).or_default();
        // After a new connection an agent repeats messages that the monitor has.
        let last = match channel {
            Some(channel) => delivered.rows.entry(channel).or_insert(at),
            None => &mut delivered.watermark,
        };
        *last = at.max(*last);
    }
}
