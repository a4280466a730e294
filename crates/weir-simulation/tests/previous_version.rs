//! Today's agent and monitor with the process `previous_version`, which has only the messages of
//! the frozen `.proto` file of the previous minor version: rows, watermarks, acks and a lost
//! connection, over the network.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use serde_json::{Value as Json, json};
use weir_agent::AgentCore;
use weir_model::{Batch, Capabilities, Catalog, Column, Symbol};
use weir_monitor::{Monitor, MonitorOptions, Publisher, PublisherLimits};
use weir_query::engine::EngineOptions;
use weir_query::place::fleet::{CutOptions, cut};
use weir_query::plan::wire;
use weir_query::{CheckOptions, compile};
use weir_runtime::plans;
use weir_runtime::run_loop::wall_clock;
use weir_sink::InstantUnit;
use weir_wire::message::VERSION;
use weir_wire::{
    AgentMessage, AlertAction, ChannelId, Dial, Hello, MonitorMessage, NextEvent, Server,
    ServerOptions, Uplink, UplinkEvent, UplinkOptions,
};

const QUERY: &str = "select bytes from IO";
/// Rows that an agent sends, ten in a message.
const ROWS: u64 = 1_000;
const WAIT_MAX: Duration = Duration::from_secs(60);

const LIMITS: PublisherLimits = PublisherLimits {
    clients_max: 4,
    backlog_bytes_max: 64 << 20,
    snapshot_bytes_max: 64 << 20,
    rows_per_second_max: 1 << 30,
};

/// The program of the previous version, stating `version`.
fn previous(version: &str, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_previous_version"))
        .args(args)
        .env("WEIR_TEST_VERSION", version)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What it reports at its end, or its error.
fn outcome(child: Child) -> Result<Json, String> {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    match output.status.success() {
        true => Ok(serde_json::from_str(&text(output.stdout)).unwrap()),
        false => Err(text(output.stderr)),
    }
}

/// What today's monitor has of an agent.
#[derive(Debug, Default)]
struct Results {
    rows: u64,
    sum: i64,
    unknown: u64,
    capabilities: Option<Capabilities>,
}

/// Runs a query on today's monitor while `agent` runs with the monitor's address.
fn on_a_monitor<T>(agent: impl FnOnce(&str) -> T) -> (T, Results) {
    let options = ServerOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
        open: true,
        ..ServerOptions::default()
    };
    let (server, mut events) = Server::bind(options).unwrap();
    let address = server.address().to_string();
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = stop.clone();
    let thread = std::thread::spawn(move || {
        let checked = compile(QUERY, &Catalog::builtin(), &CheckOptions::live()).unwrap();
        let cut = cut(&checked.plan, &CutOptions::default()).unwrap();
        assert_eq!(cut.fragments[0].plan.schema.len(), 1);
        let answer = plans::answer(&cut.monitor, InstantUnit::Nanoseconds, false, false);
        let mut publisher = Publisher::new(answer, LIMITS, Vec::new());
        let mut updates = publisher.watch().unwrap();
        let mut monitor = Monitor::new(1, MonitorOptions::default(), wall_clock());
        let started = monitor.start("q", &cut, false, publisher, wall_clock());
        started.unwrap();
        let action = AlertAction {
            instance: "noisy{}".into(),
            ..AlertAction::default()
        };
        monitor.set_actions(Symbol::new("previous"), vec![action], wall_clock());
        let mut results = Results::default();
        while !stopping.load(Ordering::Relaxed) {
            if let NextEvent::Event(event) = events.next(Duration::from_millis(2)) {
                monitor.take(event, wall_clock());
            }
            monitor.tick(wall_clock());
            while let Ok(update) = updates.try_recv() {
                let rows = &update.batch;
                results.rows += rows.num_rows() as u64;
                if let Some(bytes) = rows.column_by_name("bytes") {
                    results.sum += bytes
                        .as_primitive::<Int64Type>()
                        .values()
                        .iter()
                        .sum::<i64>();
                }
            }
            if let Some(agent) = monitor.agents().next() {
                results.capabilities.clone_from(&agent.capabilities);
            }
        }
        results
    });
    let ended = agent(&address);
    // The watermark passes the last rows.
    std::thread::sleep(Duration::from_millis(300));
    let unknown = server.counters().into_iter();
    let unknown = unknown.filter(|c| c.counter == "messages_unknown");
    let unknown = unknown.map(|c| c.total).sum();
    stop.store(true, Ordering::Relaxed);
    let results = thread.join().unwrap();
    (ended, Results { unknown, ..results })
}

#[test]
fn an_older_and_a_newer_agent_work_with_this_monitor() {
    // The program sends two unknown messages to a later monitor, and knows none of the actions that
    // it receives in each of its two connections.
    for (version, unknown, actions) in [("4.1", 0, 0), ("4.3", 2, 2)] {
        let rows = ROWS.to_string();
        let (agent, results) = on_a_monitor(|address| {
            let child = previous(version, &["agent", address, &rows]);
            outcome(child).unwrap_or_else(|why| panic!("{version}: {why}"))
        });
        // Started, 100 times rows and a watermark, and the end; each once.
        assert_eq!(agent["acked"], json!(202), "{version}: {agent}");
        assert_eq!(agent["unknown"], json!(actions), "{version}: {agent}");
        let sum = (0..100).map(|number| 10 * number).sum::<i64>();
        assert_eq!((results.rows, results.sum), (ROWS, sum), "{version}");
        assert_eq!(results.unknown, unknown, "{version}");
        assert_eq!(results.capabilities, None, "it sends none");
    }
}

/// The fragment that monitors of the previous version sent, in a file.
fn fragment(folder: &Path) -> String {
    let checked = compile(QUERY, &Catalog::builtin(), &CheckOptions::live()).unwrap();
    let path = folder.join("fragment");
    std::fs::write(&path, wire::encode(&checked.plan)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Today's agent, connected to `address`.
fn uplink(address: &str) -> Uplink {
    let hello = Hello {
        host: "today".into(),
        instance: 9,
        program: "test".into(),
        ..Hello::default()
    };
    let dial = Dial::new(address.parse().unwrap());
    Uplink::dial(UplinkOptions {
        retry_min: Duration::from_millis(5),
        retry_max: Duration::from_millis(50),
        shutdown_timeout: WAIT_MAX,
        capabilities: weir_tap::live::capabilities().encode(),
        ..UplinkOptions::new(dial, hello, Arc::new(wall_clock))
    })
    .unwrap()
}

/// Ten requests just before `at`, as rows of `IO`.
fn requests(at: i64) -> Batch {
    let catalog = Catalog::builtin();
    let io = catalog.find("IO").unwrap();
    let columns = io.schema.fields.iter().map(|field| match &field.name[..] {
        "bytes" => Column::ints(vec![4096; 10]),
        _ => Column::Nulls(10),
    });
    Batch::stream((at - 9..=at).collect::<Vec<_>>(), columns.collect())
}

/// Serves the fragments of a monitor until [`ROWS`] rows were sent.
fn serve(uplink: &Uplink) {
    let mut core = AgentCore::new(EngineOptions::default());
    let (clock, started) = (uplink.clock(), Instant::now());
    let mut is_running = false;
    let mut left = ROWS / 10;
    while left > 0 {
        assert!(started.elapsed() < WAIT_MAX, "{:?}", uplink.state());
        let event = uplink.receive(Duration::from_millis(2));
        if let Some(UplinkEvent::Message(MonitorMessage::Start(start))) = event {
            let plan = wire::decode(&start.fragment, &Catalog::builtin()).unwrap();
            core.reached(clock.to_monitor(wall_clock()));
            core.start(ChannelId(start.channel), &plan);
            is_running = true;
        }
        if is_running {
            let at = clock.to_monitor(wall_clock());
            core.push("IO", requests(at));
            core.reached(at);
            core.step(&mut |message| uplink.send(message));
            left -= 1;
        }
    }
    uplink.send(AgentMessage::Watermark(i64::MAX));
}

#[test]
fn this_agent_works_with_an_older_and_a_newer_monitor() {
    for version in ["4.1", "4.3"] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = previous(version, &["monitor", &fragment(folder.path())]);
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut address = String::new();
        output.read_line(&mut address).unwrap();
        let uplink = uplink(address.trim());
        serve(&uplink);
        let common = uplink.state().version.map(|version| version.to_string());
        assert!(uplink.close(), "{version}: everything is acknowledged");
        let mut summary = String::new();
        output.read_line(&mut summary).unwrap();
        assert!(child.wait().unwrap().success(), "{version}: {summary}");
        let summary: Json = serde_json::from_str(&summary).unwrap();
        assert_eq!(summary["agent"], json!(VERSION.to_string()));
        assert_eq!(summary["connections"], json!(2), "{summary}");
        assert_eq!(summary["rows"], json!(ROWS), "{summary}");
        assert_eq!(summary["repeated"], json!(5), "{summary}");
        let smaller = match version {
            "4.1" => "4.1",
            _ => "4.2",
        };
        assert_eq!(summary["unknown"], json!(0), "{version}: {summary}");
        assert_eq!(common.as_deref(), Some(smaller));
    }
}

#[test]
fn other_versions_are_refused_on_both_sides_with_both_versions_in_the_error() {
    let theirs = |peer: &str| format!("the {peer} uses version ");
    for version in ["3.2", "4.4", "5.0"] {
        let (refused, _) = on_a_monitor(|address| {
            let child = previous(version, &["agent", address, "10"]);
            outcome(child).unwrap_err()
        });
        let why = format!(
            "{}{version} of the protocol, this monitor version 4.2",
            theirs("agent")
        );
        assert!(refused.contains(&why), "{refused}");

        let folder = tempfile::tempdir().unwrap();
        let mut child = previous(version, &["monitor", &fragment(folder.path())]);
        let mut address = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut address).unwrap();
        let uplink = uplink(address.trim());
        let started = Instant::now();
        while uplink.state().last_failure.is_none() && started.elapsed() < WAIT_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        let failure = uplink.state().last_failure.unwrap();
        let why = format!(
            "{}{version} of the protocol, this agent version 4.2",
            theirs("monitor")
        );
        assert!(failure.contains(&why), "{failure}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
