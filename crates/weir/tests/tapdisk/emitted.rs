//! `--from tapdisk:PATH`: the reported requests of a load that is known exactly, without a guest.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;
use weir_testing::vhost::{
    BlockRequest, ClientShape, LoadReport, RequestKind, VhostClient, VhostLoad,
};

use crate::process::{Scratch, TIMEOUT, Tapdisk, WEIR, wait_until};

/// Two queues of reads, writes and flushes.
fn load(seed: u64) -> VhostLoad {
    VhostLoad {
        read: 50,
        write: 40,
        flush: 10,
        bytes_max: 16 << 10,
        requests: 1_500,
        seed,
        ..VhostLoad::default()
    }
}

fn run(socket: &str, seed: u64) -> LoadReport {
    let shape = ClientShape {
        queues: 2,
        ..ClientShape::default()
    };
    let mut client = VhostClient::connect(Path::new(socket), shape).unwrap();
    client.run(&load(seed), None).unwrap()
}

/// Two disks, each with two queues, served by a process.
struct Served {
    tapdisk: Tapdisk,
    sockets: [String; 2],
    scratch: Scratch,
}

impl Served {
    fn start() -> Served {
        let scratch = Scratch::new();
        let sockets = ["a", "b"].map(|name| scratch.file(&format!("{name}.sock")));
        let disks = ["a", "b"].map(|name| {
            let image = scratch.image(&format!("{name}.raw"), 16);
            let socket = scratch.file(&format!("{name}.sock"));
            format!("image={image},socket={socket},vm=web,vdisk=/dev/vd{name},queues=2")
        });
        let tapdisk = Tapdisk::start(&["--disk", &disks[0], "--disk", &disks[1]]);
        Served {
            tapdisk,
            sockets,
            scratch,
        }
    }

    /// Starts a command on the tap, and waits until the tap has this number of consumers.
    fn ask(&self, command: &str, args: &[&str], consumers: usize) -> Child {
        let source = format!("tapdisk:{}", self.tapdisk.tap());
        let child = Command::new(WEIR)
            .args([command, "--from", &source])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.unwrap();
        wait_until("somebody listens", || self.consumers().len() == consumers);
        child
    }

    fn consumers(&self) -> Vec<Value> {
        self.tapdisk.status()["consumers"]
            .as_array()
            .unwrap()
            .clone()
    }
}

/// The output of a command, which must end with `code`.
fn printed(child: Child, code: i32) -> String {
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(!error.contains("lost"), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// The histograms of `weir hist --json`, by disk.
fn histograms(text: &str) -> Vec<(Value, Value)> {
    let lines = lines(text);
    let subjects = lines.iter().filter(|line| line.get("histograms").is_some());
    let mut all: Vec<(Value, Value)> = subjects
        .map(|line| (line["vdisk"].clone(), line["histograms"].clone()))
        .collect();
    all.sort_by_key(|(disk, _)| disk.to_string());
    all
}

#[test]
fn the_taps_histograms_are_those_of_a_recording_of_the_same_run() {
    let served = Served::start();
    let recording = served.scratch.file("r.parquet");
    let hist = served.ask("hist", &["--json"], 1);
    let record = served.ask("record", &["-o", &recording], 2);
    let reports: Vec<LoadReport> = [0, 1].map(|disk| run(&served.sockets[disk], 7)).into();
    let kill = Command::new("kill")
        .args(["-s", "INT", &hist.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let kept = histograms(&printed(hist, 130));
    // The recording contains the requests up to the end of the tap.
    served.tapdisk.stop();
    printed(record, 0);
    let counted = Command::new(WEIR)
        .args(["hist", "--json", "--from", &recording])
        .output();
    let counted = histograms(&String::from_utf8(counted.unwrap().stdout).unwrap());
    assert_eq!(kept.len(), 2);
    for ((kept, counted), report) in kept.iter().zip(&counted).zip(&reports) {
        let requests = &kept.1["outstandingIOs"]["all"]["count"];
        assert_eq!(requests, report.requests);
        assert_eq!(kept, counted);
    }
}

#[test]
fn events_without_consumers_are_not_created() {
    let served = Served::start();
    let question = "select vdisk, count(*) as n, sum(sectors) as sectors from IO \
         where op = 'w' and sectors >= 16 group by vdisk";
    let query = served.ask("query", &["--format", "json", "--final", question], 1);
    let report = run(&served.sockets[0], 3);
    let asked = report.log.iter().flatten().map(|asked| asked.ask);
    let wanted = |ask: &BlockRequest| ask.kind == RequestKind::Write && ask.bytes >= 16 * 512;
    let large: Vec<BlockRequest> = asked.filter(wanted).collect();
    wait_until("the last request is reported", || {
        let consumer = &served.consumers()[0];
        let emitted = [&consumer["records"], &consumer["avoided"]].map(|n| n.as_u64().unwrap());
        // One row for the request and one for its completion.
        emitted.iter().sum::<u64>() == 2 * report.requests
    });
    assert_eq!(served.consumers()[0]["records"], large.len());
    served.tapdisk.stop();
    let rows = lines(&printed(query, 0));
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(
        (&rows[0]["vdisk"], &rows[0]["n"]),
        (&"/dev/vda".into(), &large.len().into())
    );
    let sectors: usize = large.iter().map(|ask| ask.bytes / 512).sum();
    assert_eq!(rows[0]["sectors"], sectors);
}

#[test]
fn requests_are_joined_with_their_responses_by_the_pairing() {
    let served = Served::start();
    let question = "select count(*) as n, sum(r.ts - q.ts) as waited, sum(q.sector) as sectors \
         from IOstream as q, IOstream as r \
         where q.type = 'Q' and r.type = 'R' and q.req_id = r.req_id";
    let pairs = served.ask("query", &["--format", "json", "--final", question], 1);
    let join = ["--no-pairing", "--format", "json", "--final", question];
    let join = served.ask("query", &join, 2);
    let explained = Command::new(WEIR)
        .args([
            "explain",
            "--from",
            &format!("tapdisk:{}", served.tapdisk.tap()),
            question,
        ])
        .output();
    let explained = String::from_utf8(explained.unwrap().stdout).unwrap();
    assert!(
        explained.contains("computed from the tap's pairs"),
        "{explained}"
    );
    // Each disk numbers its requests separately; in this load no number is used twice.
    let reports: Vec<LoadReport> = [0, 1].map(|disk| run(&served.sockets[disk], 11)).into();
    let asked: u64 = reports.iter().map(|report| report.requests).sum();
    served.tapdisk.stop();
    let (pairs, join) = (lines(&printed(pairs, 0)), lines(&printed(join, 0)));
    assert_eq!(pairs[0]["n"], asked);
    for column in ["n", "waited", "sectors"] {
        // The clocks of the two processes differ by some nanoseconds, and so do the instants.
        assert_eq!(pairs[0][column], join[0][column], "{column}");
    }
}

#[test]
fn what_only_a_tap_in_the_disk_path_tests_is_selected_there_and_answers_the_same() {
    let served = Served::start();
    let query = |condition: &str, consumers| {
        let text = format!("select req_id, type, vsector from IOstream where {condition}");
        served.ask("query", &["--format", "json", &text], consumers)
    };
    let selected = query("vsector < 4096", 1);
    // The engine evaluates the function before the comparison, which no source supports.
    let tested = query("abs(vsector) < 4096", 2);
    run(&served.sockets[0], 11);
    // The guest receives its last response before the counters are published.
    let mut consumers = served.consumers();
    wait_until("both consumers have counted all events", || {
        consumers = served.consumers();
        let count = |consumer: usize, what: &str| consumers[consumer][what].as_u64().unwrap_or(0);
        let all = count(1, "records");
        all > 0 && count(0, "records") + count(0, "avoided") == all
    });
    let (few, all) = (&consumers[0], &consumers[1]);
    served.tapdisk.stop();
    // Without the instant: each process computes the offset between monotonic clock and wall clock,
    // and these offsets differ by some nanoseconds.
    let rows = |child| {
        let values = |line: &str| {
            let row: Value = serde_json::from_str(line).unwrap();
            ["req_id", "type", "vsector"].map(|column| row[column].to_string())
        };
        let mut rows: Vec<[String; 3]> = printed(child, 0).lines().map(values).collect();
        rows.sort_unstable();
        rows
    };
    let (selected, tested) = (rows(selected), rows(tested));
    assert!(!selected.is_empty());
    assert_eq!(selected, tested);
    assert!(
        few["avoided"].as_u64() > Some(0) && all["avoided"] == 0,
        "{few} {all}"
    );
    assert_eq!(few["records"].as_u64(), Some(selected.len() as u64));
}

#[test]
fn explain_prints_the_selection_of_the_tap() {
    let served = Served::start();
    let explain = |question: &str, socket: &str| {
        let output = Command::new(WEIR)
            .args(["explain", "--from", &format!("tapdisk:{socket}"), question])
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    // The socket of a disk leads to its tap.
    let printed = explain(
        "select count(*) from IO where op in ('r', 'w') and latency >= 5 ms and sector < 1000",
        &served.sockets[0],
    );
    let line = format!(
        "tapdisk:{}: selects type in (R, E, N) and op in (r, w) and latency >= 5000000 and sector <= 999 \
         in the tapdisk",
        served.sockets[0]
    );
    assert!(printed.contains(&line), "{printed}");
    assert!(
        printed.contains("-> tapdisk") && !printed.contains("-> kernel"),
        "{printed}"
    );
    // No live tap of the host has the sector on the virtual disk, and none tests this many ranges.
    let ranges: Vec<String> = (0..9)
        .map(|i| format!("vsector between {0} and {0} + 7", 64 * i))
        .collect();
    let printed = explain(
        &format!("select count(*) from IO where {}", ranges.join(" or ")),
        &served.sockets[0],
    );
    let selections = printed.matches("sector between").count();
    assert!(
        selections >= 9 && printed.contains("in the tapdisk"),
        "{printed}"
    );
    let not_listening = explain("select count(*) from IO", "/nowhere.sock");
    assert!(
        not_listening.contains("/nowhere.sock") && not_listening.contains("start `weir tapdisk`"),
        "{not_listening}"
    );
}

/// Count and bytes by disk and operation.
type Totals = BTreeMap<[String; 2], [u64; 2]>;

/// Adds lines with `vdisk`, `op`, `n`, `bytes`; a row of one request has no `n`.
fn totals(lines: &[Value]) -> Totals {
    let mut totals = Totals::new();
    for line in lines {
        let key = ["vdisk", "op"].map(|name| line[name].as_str().unwrap().to_owned());
        let sums = totals.entry(key).or_default();
        sums[0] += line.get("n").map_or(1, |n| n.as_u64().unwrap());
        sums[1] += line["bytes"].as_u64().unwrap();
    }
    totals
}

#[test]
fn groups_of_the_queues_are_those_of_the_requests() {
    let served = Served::start();
    let query = |text: &str, consumers| {
        let args = ["--format", "json", text];
        served.ask("query", &args, consumers)
    };
    let groups = query(
        "Istream(select vdisk, op, count(*) as n, sum(bytes) as bytes, quantile(latency, 0.5) as q \
         from IO [range 200 ms slide 200 ms] where vm = 'web' group by vdisk, op)",
        1,
    );
    let rows = query("select vdisk, op, bytes from IO", 2);
    let made: u64 = (0..3)
        .flat_map(|round| [(0, round), (1, round + 7)])
        .map(|(disk, seed)| run(&served.sockets[disk], seed).requests)
        .sum();
    let mut consumers = served.consumers();
    wait_until("both consumers have counted all requests", || {
        consumers = served.consumers();
        let count = |consumer: usize, what: &str| consumers[consumer][what].as_u64().unwrap_or(0);
        count(1, "records") == made && count(0, "records") + count(0, "grouped") == made
    });
    let grouped = consumers[0]["grouped"].as_u64().unwrap();
    assert!(grouped > 0, "{consumers:?}");
    served.tapdisk.stop();
    let expected = totals(&lines(&printed(rows, 0)));
    assert_eq!(expected.values().map(|sums| sums[0]).sum::<u64>(), made);
    assert_eq!(totals(&lines(&printed(groups, 0))), expected);
}

/// A process that is killed at the end of the test.
struct Running(Child);

impl Running {
    /// Starts it, and waits until it logs a line with `word`; returns that line.
    fn start(args: &[&str], word: &str) -> (Running, String) {
        let mut child = Command::new(WEIR)
            .args(args)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let found = lines.find_map(|line| line.ok().filter(|line| line.contains(word)));
        // Later output must be read.
        std::thread::spawn(move || lines.for_each(drop));
        (
            Running(child),
            found.unwrap_or_else(|| panic!("{args:?} never prints {word}")),
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_agent_reports_the_disks_of_its_tap() {
    let served = Served::start();
    let (monitor, agent) = (served.scratch.file("monitor"), served.scratch.file("agent"));
    let socket = format!("unix:{}", served.scratch.file("monitor.sock"));
    let listen = ["monitor", "--listen", &socket, "--state", &monitor];
    let (_monitor, printed) = Running::start(&listen, "listening address=");
    let address = printed.split("listening address=").nth(1).unwrap();
    let from = format!("tapdisk:{}", served.tapdisk.tap());
    let agent = [
        "agent",
        "--monitor",
        address,
        "--host",
        "h1",
        "--state",
        &agent,
        "--from",
        &from,
    ];
    let (_agent, _) = Running::start(&agent, "connected to the monitor");
    // The agent has tested whether it can connect.
    wait_until("nobody listens", || served.consumers().is_empty());
    let question = "select host, vm, vdisk, count(*) as n from IO group by host, vm, vdisk";
    let (_query, emitted) = queried(address, question);
    // Events before the start of the query are not reported.
    wait_until("it has begun", || {
        run(&served.sockets[0], 4);
        emitted.try_recv().is_ok()
    });
    let report = run(&served.sockets[1], 5);
    let whole = loop {
        let row: Value = emitted
            .recv_timeout(TIMEOUT)
            .expect("all rows are reported");
        if row["vdisk"] == "/dev/vdb" && row["n"] == report.requests {
            break row;
        }
    };
    assert_eq!(
        (&whole["host"], &whole["vm"]),
        (&"h1".into(), &"web".into())
    );
    // The queues compute the groups of this one, and the monitor merges them.
    let question = "Istream(select host, vdisk, count(*) as n from IO [range 1 s slide 1 s] \
                    group by host, vdisk)";
    let (_query, emitted) = queried(address, question);
    wait_until("it has begun as well", || {
        run(&served.sockets[0], 6);
        emitted.try_recv().is_ok()
    });
    let report = run(&served.sockets[1], 7);
    let mut requests = 0;
    while requests < report.requests {
        let row = emitted.recv_timeout(TIMEOUT).expect("all are in groups");
        if row["vdisk"] == "/dev/vdb" {
            assert_eq!(row["host"], "h1");
            requests += row["n"].as_u64().unwrap();
        }
    }
    assert_eq!(requests, report.requests);
    let grouped = |consumer: &Value| consumer["grouped"].as_u64() > Some(0);
    wait_until("groups are counted", || {
        served.consumers().iter().any(grouped)
    });
}

/// A query of a monitor, and its rows.
fn queried(address: &str, question: &str) -> (Running, Receiver<Value>) {
    let mut query = Running(
        Command::new(WEIR)
            .args(["query", "--monitor", address, "--format", "json", question])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let lines = BufReader::new(query.0.stdout.take().unwrap()).lines();
    let (rows, emitted) = channel();
    std::thread::spawn(move || {
        let mut lines = lines.map_while(Result::ok);
        lines.all(|line| rows.send(serde_json::from_str(&line).unwrap()).is_ok())
    });
    (query, emitted)
}
