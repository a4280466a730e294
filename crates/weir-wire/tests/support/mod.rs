//! A monitor with one query, for tests of the network.
#![allow(dead_code)] // Each test file uses its own part of this.

pub mod agent;
pub mod agent_rows;
pub mod attacked_server;
pub mod authority;
pub mod random;
pub mod recording_monitor;
pub mod scripted_monitor;
pub mod simulation;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use arrow_array::{Int64Array, RecordBatch, TimestampNanosecondArray};
use arrow_schema::{Field, Schema, SchemaRef};
use serde_json::json;
use weir_model::{Column, Type};
use weir_wire::event::{ClientReply, ResultUpdate};
use weir_wire::{
    ClientRequest, Dial, EventQueue, NextEvent, Refusal, Server, ServerEvent, ServerOptions,
    SessionId, Welcome, WireError,
};

pub use weir_testing::{TIMEOUT as WAIT_MAX, wait_until as until};

/// A server whose monitor has the query `q` and welcomes every agent.
pub struct Monitor {
    pub server: Server,
    stop: Arc<AtomicBool>,
    /// The messages of agents and their disconnections, as texts.
    pub received: Arc<Mutex<Vec<String>>>,
    /// The watchers of `endless`, to send them more.
    pub watchers: Watchers,
    /// While this is set, no events are read.
    pub busy: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    pub fn start(options: ServerOptions) -> Result<Monitor, WireError> {
        let (server, events) = Server::bind(options)?;
        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(Mutex::new(Vec::new()));
        let watchers = Watchers::default();
        let (stop_seen, received_here) = (stop.clone(), received.clone());
        let watching = watchers.clone();
        let busy = Arc::new(AtomicBool::new(false));
        let busy_seen = busy.clone();
        let thread = std::thread::spawn(move || {
            answer(events, &stop_seen, &busy_seen, &received_here, &watching);
        });
        Ok(Monitor {
            server,
            stop,
            received,
            watchers,
            busy,
            thread: Some(thread),
        })
    }

    /// On a free port of this host, with options changed by `change`.
    pub fn local(change: impl FnOnce(&mut ServerOptions)) -> Monitor {
        let mut options = ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            open: true,
            ..ServerOptions::default()
        };
        change(&mut options);
        Monitor::start(options).unwrap()
    }

    pub fn counted(&self, counter: &str, cause: Option<&str>) -> u64 {
        let all = self.server.counters();
        let one = all
            .iter()
            .find(|c| (c.counter, c.cause) == (counter, cause));
        one.unwrap_or_else(|| panic!("no counter {counter}")).total
    }

    pub fn dial(&self) -> Dial {
        Dial::new(self.server.address().to_string().parse().unwrap())
    }

    pub fn has_received(&self, part: &str) -> bool {
        self.received
            .lock()
            .unwrap()
            .iter()
            .any(|h| h.contains(part))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn answer(
    mut events: EventQueue,
    stop: &AtomicBool,
    busy: &AtomicBool,
    received: &Mutex<Vec<String>>,
    watchers: &Watchers,
) {
    let mut orders = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if busy.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        let event = match events.next(Duration::from_millis(20)) {
            NextEvent::Event(event) => event,
            NextEvent::Timeout => continue,
            NextEvent::Ended => return,
        };
        match event {
            ServerEvent::Joined(joined) => {
                let refused = joined.hello.host == "refused";
                let answer = match refused {
                    true => Err(Refusal::AlreadyExists(
                        "there is a host of that name".into(),
                    )),
                    false => Ok(welcome()),
                };
                received
                    .lock()
                    .unwrap()
                    .push(format!("joined {}", joined.hello.host));
                let _ = joined.welcome.send(answer);
                orders.push(joined.orders);
            }
            ServerEvent::Message {
                session,
                number,
                message,
            } => {
                let SessionId(session) = session;
                let line = format!("{session} sent {number:?} {message:?}");
                received.lock().unwrap().push(line);
            }
            ServerEvent::Refused { peer, why, .. } => {
                received
                    .lock()
                    .unwrap()
                    .push(format!("refused {peer}: {why}"));
            }
            ServerEvent::Left { why, .. } => received.lock().unwrap().push(format!("left {why}")),
            ServerEvent::Request {
                who,
                request,
                reply,
            } => {
                let _ = reply.0.send(reply_to(&who.name, request, watchers));
            }
        }
    }
}

fn welcome() -> Welcome {
    Welcome {
        monitor: 1,
        acked: 0,
        channels: Vec::new(),
        heartbeat_interval_ns: 50_000_000,
        ..Welcome::default()
    }
}

/// Where to send further updates to watchers.
pub type Watchers = Arc<Mutex<Vec<tokio::sync::mpsc::Sender<ResultUpdate>>>>;

fn reply_to(
    who: &str,
    request: ClientRequest,
    watchers: &Watchers,
) -> Result<ClientReply, Refusal> {
    let query = |results| ClientReply::Query {
        name: "q".to_owned(),
        schema: schema(),
        results,
    };
    let known = |name: String| match name == "q" || name == "endless" {
        true => Ok(name),
        false => Err(Refusal::NotFound(format!("there is no query `{name}`"))),
    };
    match request {
        ClientRequest::Submit(submit) if submit.query.contains("oops") => Err(Refusal::Invalid(
            "error[W0001]: `oops`\n 1 | oops".to_owned(),
        )),
        ClientRequest::Submit(_) => Ok(query(None)),
        ClientRequest::Watch { query: name } => {
            let name = known(name)?;
            let (send, results) = tokio::sync::mpsc::channel(4);
            for shown in shown_batches() {
                send.try_send(shown).unwrap();
            }
            if name == "endless" {
                watchers.lock().unwrap().push(send);
            }
            Ok(query(Some(results)))
        }
        ClientRequest::Queries => Ok(ClientReply::Json(json!([{ "name": "q", "asked_by": who }]))),
        ClientRequest::Views | ClientRequest::Streams => Ok(ClientReply::Json(json!([]))),
        ClientRequest::ChangeViews { text } => Ok(ClientReply::Json(json!([text]))),
        ClientRequest::Alerts | ClientRequest::Silences => Ok(ClientReply::Json(json!([]))),
        ClientRequest::PlaceAlerts { text } => Ok(ClientReply::Json(json!([text]))),
        ClientRequest::RemoveAlert { alert } => Ok(ClientReply::Json(json!({ "removed": alert }))),
        ClientRequest::Silence(silence) => Ok(ClientReply::Json(json!({ "id": silence.comment }))),
        ClientRequest::Unsilence { silence } => Ok(ClientReply::Json(json!({ "ended": silence }))),
        ClientRequest::Hosts => Ok(ClientReply::Json(json!([{ "host": "web1" }]))),
        ClientRequest::Explain(submit) => {
            Ok(ClientReply::Json(json!({ "explained": submit.query })))
        }
        ClientRequest::Cancel { query } => {
            known(query).map(|n| ClientReply::Json(json!({ "cancelled": n })))
        }
    }
}

/// The columns of `q`.
pub fn schema() -> SchemaRef {
    let field = |name: &str, ty| Field::new(name, weir_model::arrow::arrow_type(ty), true);
    Arc::new(Schema::new(vec![
        field("instant", Type::Time),
        field("weight", Type::Int),
        field("vm", Type::Text),
        field("requests", Type::Int),
    ]))
}

/// The results of `q`: two batches with different texts, and the end.
pub fn shown_batches() -> Vec<ResultUpdate> {
    let rows = |at: i64, vms: &[&str], weights: Vec<i64>| {
        let rows = vms.len() as i64;
        let instants = TimestampNanosecondArray::from(vec![at; vms.len()]).with_timezone("UTC");
        RecordBatch::try_new(
            schema(),
            vec![
                Arc::new(instants),
                Arc::new(Int64Array::from(weights)),
                weir_model::arrow::arrow_array(&Column::texts(vms.iter().copied()), Type::Text),
                Arc::new(Int64Array::from_iter_values(0..rows)),
            ],
        )
        .unwrap()
    };
    vec![
        ResultUpdate {
            batch: rows(1_000, &["web1", "db1"], vec![1, 1]),
            note: json!({ "at": 1_000, "reset": true, "hosts": 1 }),
        },
        ResultUpdate {
            batch: rows(2_000, &["db1", "new1"], vec![-1, 2]),
            note: json!({ "at": 2_000 }),
        },
        ResultUpdate {
            batch: rows(3_000, &[], vec![]),
            note: json!({ "at": 3_000, "ended": "cancelled" }),
        },
    ]
}

/// The result of `work`, waited for with a timeout.
pub fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, done) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = send.send(work());
    });
    done.recv_timeout(WAIT_MAX).expect("it ends in time")
}
