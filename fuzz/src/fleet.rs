//! Fuzz targets `agent` and `monitor`: the cores of both services with arbitrary messages.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, oneshot};
use weir_agent::AgentCore;
use weir_model::{Catalog, Nanos};
use weir_monitor::{Monitor, MonitorOptions, Publisher, PublisherLimits};
use weir_query::place::fleet::{Cut, CutOptions, cut};
use weir_query::plan::wire;
use weir_query::{CheckOptions, EngineOptions, compile};
use weir_runtime::plans;
use weir_wire::frame::texts::TextBudget;
use weir_wire::message::{FlightData, FromAgent, FromMonitor};
use weir_wire::{
    AgentMessage, ChannelId, Hello, Incoming, Intake, Joined, MonitorMessage, Peer, ServerEvent,
    SessionId,
};

use super::{PLAN_BYTES_MAX, few_rows, message};

/// Messages of a monitor, as in [`wire`](super::wire): an agent starts and stops the fragments,
/// with a few rows of each source between them. Only channels that run emit rows, all later than
/// the last watermark, and watermarks increase.
pub fn agent(data: &[u8]) {
    let catalog = Catalog::builtin();
    let mut core = AgentCore::new(EngineOptions {
        query_bytes_max: PLAN_BYTES_MAX,
        span_rows_max: 64,
    });
    let mut emitted = Emitted::default();
    let (mut rest, mut at) = (data, 0);
    while let Some(message) = message(&mut rest) {
        let Ok(received) = FromMonitor::read(&message) else {
            break;
        };
        match received.message.body {
            Some(MonitorMessage::Start(start)) => {
                let channel = ChannelId(start.channel);
                match wire::decode(&start.fragment, &catalog) {
                    Ok(plan) => core.start(channel, &plan),
                    Err(why) => core.refuse(channel, why.to_string()),
                }
            }
            Some(MonitorMessage::Stop(channel)) => core.stop(ChannelId(channel)),
            _ => {}
        }
        for source in &catalog.declarations {
            if core.reads(&source.name) {
                core.push(&source.name, few_rows(source, at));
            }
        }
        at += 2_000;
        core.reached(at);
        core.step(&mut |message| emitted.check(message));
    }
    core.end(at, &mut |message| emitted.check(message));
}

/// What an agent has emitted.
#[derive(Default)]
struct Emitted {
    running: BTreeSet<u64>,
    watermark: Option<Nanos>,
}

impl Emitted {
    fn check(&mut self, message: AgentMessage) {
        match message {
            AgentMessage::Started(started) => drop(self.running.insert(started.channel)),
            AgentMessage::Failed(failed) => drop(self.running.remove(&failed.channel)),
            AgentMessage::Rows { channel, batch } => {
                assert!(self.running.contains(&channel.0), "the channel runs");
                let first = batch.ts.first().copied();
                assert!(first > self.watermark, "rows are after the watermark");
            }
            AgentMessage::Watermark(at) => {
                assert!(Some(at) > self.watermark, "watermarks increase");
                self.watermark = Some(at);
            }
            _ => {}
        }
    }
}

/// Messages of agents, as in [`wire`](super::wire): the first of a connection is its hello, and a
/// violation of the protocol ends it. The monitor runs queries over them, and its time does not go
/// back.
pub fn monitor(data: &[u8]) {
    let mut now = START;
    let mut monitor = Monitor::new(1, MonitorOptions::default(), now);
    for (number, cut) in cuts().iter().enumerate() {
        let clock = weir_sink::InstantUnit::Nanoseconds;
        let answer = plans::answer(&cut.monitor, clock, false, false);
        let publisher = Publisher::new(answer, LIMITS, Vec::new());
        let name = format!("q{number}");
        let started = monitor.start(&name, cut, false, publisher, now);
        started.expect("nothing is written to disk");
    }
    let budget = Arc::new(TextBudget::new(100, 10_000));
    let mut connection: Option<Connection> = None;
    let (mut rest, mut sessions) = (data, 0);
    while let Some(message) = message(&mut rest) {
        now += STEP_NS;
        connection = match connection {
            None => {
                sessions += 1;
                Connection::join(&mut monitor, SessionId(sessions), &message, &budget, now)
            }
            Some(connection) => connection.receive(&mut monitor, &message, now),
        };
        let before = monitor.watermark();
        monitor.tick(now);
        assert!(monitor.watermark() >= before, "time does not go back");
    }
}

/// The monitor's time at its start, and between two messages.
const START: Nanos = 1_700_000_000_000_000_000;
const STEP_NS: Nanos = 50_000_000;

const LIMITS: PublisherLimits = PublisherLimits {
    clients_max: 1,
    backlog_bytes_max: 1 << 20,
    snapshot_bytes_max: 1 << 20,
    rows_per_second_max: 1 << 20,
};

/// The queries of the monitor: rows, partials of groups, and a relation.
fn cuts() -> &'static [Cut] {
    static CUTS: OnceLock<Vec<Cut>> = OnceLock::new();
    let of = |text: &str| {
        let checked = compile(text, &Catalog::builtin(), &CheckOptions::live());
        let checked = checked.expect("the query is sound");
        cut(&checked.plan, &CutOptions::default()).expect("it has a placement")
    };
    let queries = [
        "select bytes, latency from IO",
        "select op, count(*) from IO [range 1 s slide 1 s] group by op",
        "select vm, host from vms",
    ];
    CUTS.get_or_init(|| queries.map(of).into())
}

/// A connection of an agent whose hello was accepted.
struct Connection {
    session: SessionId,
    intake: Intake,
    _orders: mpsc::Receiver<MonitorMessage>,
}

impl Connection {
    /// Joins with the hello in `data`, or with a plain one.
    fn join(
        monitor: &mut Monitor,
        session: SessionId,
        data: &FlightData,
        budget: &Arc<TextBudget>,
        now: Nanos,
    ) -> Option<Connection> {
        let hello = FromAgent::read_hello(data).unwrap_or_else(|_| Hello {
            host: "a".into(),
            instance: 1,
            ..Hello::default()
        });
        let (welcome, mut answer) = oneshot::channel();
        let (orders, orders_waiting) = mpsc::channel(1_000);
        let joined = Joined {
            session,
            peer: Peer::Tcp(([127, 0, 0, 1], 1).into()),
            hello,
            welcome,
            orders,
        };
        assert!(monitor.take(ServerEvent::Joined(joined), now).is_none());
        let welcome = answer.try_recv().expect("the monitor answers at once");
        Some(Connection {
            session,
            intake: Intake::new(&welcome.ok()?, budget.clone()),
            _orders: orders_waiting,
        })
    }

    /// Processes a message.
    fn receive(
        mut self,
        monitor: &mut Monitor,
        data: &FlightData,
        now: Nanos,
    ) -> Option<Connection> {
        let session = self.session;
        let event = match self.intake.receive(data, now) {
            Ok(Incoming::Message(number, message)) => ServerEvent::Message {
                session,
                number,
                message,
            },
            Ok(_) => return Some(self),
            Err(malformed) => {
                let why = malformed.to_string();
                monitor.take(ServerEvent::Left { session, why }, now);
                return None;
            }
        };
        assert!(monitor.take(event, now).is_none());
        Some(self)
    }
}
