//! A monitor, and agents that send the messages that a test specifies.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};
use weir_model::{Batch, Catalog, Column, Declaration, Field, Nanos, Schema, Shape, Type, Value};
use weir_query::engine::{EngineOptions, QueryId};
use weir_query::place::fleet::{Cut, CutOptions, PlacementStrategy, cut};
use weir_query::{CheckOptions, compile};
use weir_sink::{InstantUnit, Sink, SinkError};
use weir_wire::{
    AgentMessage, ChannelId, EarlierProcess, Hello, Joined, MonitorMessage, Peer, Refusal,
    ServerEvent, SessionId, Welcome,
};

use super::super::publish::PublisherLimits;
use super::super::{FileSink, Monitor, MonitorOptions, Publisher, Work};
use tempfile::TempDir;
use weir_runtime::plans;

/// The number of the monitor without a state directory.
pub const IDENTITY: u64 = 7;

/// The start of the tests' time.
pub const START: Nanos = 1_000;

/// More than any test needs.
const PUBLISHER_LIMITS: PublisherLimits = PublisherLimits {
    clients_max: 100,
    backlog_bytes_max: 1 << 20,
    snapshot_bytes_max: 1 << 20,
    rows_per_second_max: 1 << 30,
};

/// Options in which a heartbeat is 10 and an agent is excluded after 100.
pub fn options() -> MonitorOptions {
    MonitorOptions {
        heartbeat: 10,
        exclude_after: 100,
        ahead_max: 1_000,
        agents_max: 2_000,
        forget_after: 10_000,
        timeout: 50,
        waiting_bytes_max: 1 << 30,
        engine: EngineOptions::default(),
        checkpoint_every: 20,
        hold_max: 1_000,
        hold_bytes_max: 1 << 20,
        recovery: 10_000,
    }
}

/// A row or delta: instant, values, weight.
pub type Delta = (i64, Vec<Value>, i64);

/// The results of a query, in the order of arrival.
#[derive(Clone, Default)]
pub struct Results(Arc<Mutex<Vec<Delta>>>);

impl Results {
    /// The results as net changes per instant, sorted.
    pub fn net(&self) -> Vec<Delta> {
        let mut net: BTreeMap<(i64, Vec<Value>), i64> = BTreeMap::new();
        for (ts, row, weight) in self.0.lock().unwrap().iter() {
            *net.entry((*ts, row.clone())).or_default() += weight;
        }
        let rows = net.into_iter().filter(|(_, weight)| *weight != 0);
        rows.map(|((ts, row), weight)| (ts, row, weight)).collect()
    }

    /// A publisher of a query's results to this collector.
    pub fn publisher(&self, cut: &Cut) -> Publisher {
        publisher(cut, Box::new(self.clone()), PathBuf::new())
    }
}

impl Sink for Results {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut rows = self.0.lock().unwrap();
        rows.extend((0..batch.len()).map(|r| (batch.ts[r], batch.row(r), batch.weight(r))));
        Ok(())
    }
}

/// A publisher of a query's results to a sink with the name `path`.
pub fn publisher(cut: &Cut, sink: Box<dyn Sink>, path: PathBuf) -> Publisher {
    publisher_to(cut, vec![FileSink::new(path, sink)])
}

/// A publisher of a query's results to these files.
pub fn publisher_to(cut: &Cut, files: Vec<FileSink>) -> Publisher {
    let answer = plans::answer(&cut.monitor, InstantUnit::Nanoseconds, false, false);
    Publisher::new(answer, PUBLISHER_LIMITS, files)
}

/// Access for tests only.
impl Monitor {
    /// The work done so far.
    pub fn work(&self) -> Work {
        self.work
    }
}

/// A temporary directory that is removed when this is dropped.
pub struct Directory(TempDir);

impl Directory {
    pub fn new() -> Directory {
        Directory(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A monitor and the connections to it.
pub struct Fleet {
    pub monitor: Monitor,
    pub now: Nanos,
    sessions: u64,
}

/// An agent on a connection.
pub struct Link {
    pub session: SessionId,
    pub welcome: Result<Welcome, Refusal>,
    pub orders: mpsc::Receiver<MonitorMessage>,
    pub number: u64,
}

impl Fleet {
    pub fn new(options: MonitorOptions) -> Fleet {
        Fleet {
            monitor: Monitor::new(IDENTITY, options, START),
            now: START,
            sessions: 0,
        }
    }

    /// A monitor that continues from the state in a directory.
    pub fn open(dir: &Path, options: MonitorOptions, now: Nanos) -> Fleet {
        let monitor = Monitor::open(dir, options, now).expect("a state directory");
        Fleet::of(monitor, now)
    }

    /// This monitor, without agents.
    pub fn of(monitor: Monitor, now: Nanos) -> Fleet {
        Fleet {
            monitor,
            now,
            sessions: 0,
        }
    }

    /// Runs a query over stream `S (host text, a int)`, split by the given strategy.
    pub fn query(&mut self, text: &str, strategy: PlacementStrategy) -> (QueryId, Results) {
        let results = Results::default();
        let cut = cut_of(text, strategy);
        let publisher = results.publisher(&cut);
        let query = self
            .monitor
            .start("q", &cut, false, publisher, self.now)
            .expect("nothing is written down");
        (query, results)
    }

    /// Connects an agent's process.
    pub fn join(&mut self, host: &str, instance: u64) -> Link {
        self.join_after(host, instance, Vec::new())
    }

    /// The same after earlier processes.
    pub fn join_after(&mut self, host: &str, instance: u64, earlier: Vec<EarlierProcess>) -> Link {
        self.connect_agent(Hello {
            host: host.into(),
            instance,
            program: "test".into(),
            earlier,
            ..Hello::default()
        })
    }

    /// Connects an agent's process with this hello.
    pub fn connect_agent(&mut self, hello: Hello) -> Link {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let (welcome, mut answer) = oneshot::channel();
        let (orders, received) = mpsc::channel(1_000);
        self.take(ServerEvent::Joined(Joined {
            session,
            peer: Peer::Tcp((Ipv4Addr::LOCALHOST, 1).into()),
            hello,
            welcome,
            orders,
        }));
        Link {
            session,
            welcome: answer.try_recv().expect("an answer"),
            orders: received,
            number: 0,
        }
    }

    /// Sends a message of an agent.
    pub fn send(&mut self, link: &mut Link, word: AgentMessage) {
        link.number += 1;
        self.send_as(link.session, link.number, word);
    }

    /// Sends an agent's report that this number of requests is lost.
    pub fn lose(&mut self, link: &mut Link, channel: ChannelId, requests: u64) {
        self.send(link, AgentMessage::lost(channel, requests, "spool_full"));
    }

    /// Sends a message of an agent with an explicit number.
    pub fn send_as(&mut self, session: SessionId, number: u64, message: AgentMessage) {
        self.take(ServerEvent::Message {
            session,
            number: Some(number),
            message,
        });
    }

    /// Closes a connection.
    pub fn leave(&mut self, link: &Link) {
        self.take(ServerEvent::Left {
            session: link.session,
            why: "cut".into(),
        });
    }

    fn take(&mut self, event: ServerEvent) {
        assert!(self.monitor.take(event, self.now).is_none());
    }

    /// Sets the clock to `now` and advances time.
    pub fn tick(&mut self, now: Nanos) {
        self.now = now;
        self.monitor.tick(now);
    }
}

impl Link {
    /// The orders since the last call.
    pub fn received(&mut self) -> Vec<MonitorMessage> {
        std::iter::from_fn(|| self.orders.try_recv().ok()).collect()
    }

    /// The channels that it was ordered to start.
    pub fn starts(&mut self) -> Vec<ChannelId> {
        let started = |word: MonitorMessage| match word {
            MonitorMessage::Start(start) => Some(ChannelId(start.channel)),
            _ => None,
        };
        self.received().into_iter().filter_map(started).collect()
    }
}

/// The catalog of the tests: stream `S (host text, a int)`, relation `R (host text, a int)`, and
/// the built-in sources.
pub fn catalog() -> Catalog {
    let mut catalog = Catalog::builtin();
    for (name, shape) in [("S", Shape::Stream), ("R", Shape::Relation)] {
        let fields = [("host", Type::Text), ("a", Type::Int)];
        let fields = fields.map(|(name, ty)| Field::new(name, ty).nullable());
        catalog
            .declarations
            .push(Declaration::new(name, shape, Schema::new(fields.to_vec())));
    }
    catalog
}

/// A query over [`catalog`], split into fragments.
pub fn cut_of(text: &str, strategy: PlacementStrategy) -> Cut {
    let checked = compile(text, &catalog(), &CheckOptions::live()).expect("a sound query");
    let options = CutOptions {
        hint: Some(strategy),
        ..CutOptions::default()
    };
    cut(&checked.plan, &options).expect("a query that can be cut so")
}

/// Rows of stream `S` at a host: instants and values.
pub fn rows(host: &str, rows: &[(i64, i64)]) -> Batch {
    let (ts, values): (Vec<i64>, Vec<i64>) = rows.iter().copied().unzip();
    let hosts = Column::texts(rows.iter().map(|_| host));
    Batch::stream(ts, vec![hosts, Column::ints(values)])
}
