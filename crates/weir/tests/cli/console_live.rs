//! `weir console` on the live host: one process reads it for all tabs, and retains requests.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::Message;
use weir_testing::wait_until;

use super::{Console, acknowledge, header, subscribe};
use crate::live::{loop_disk, watchable};
use crate::support::{Scratch, run, skipped, weir};

/// The size of a request.
const REQUEST_BYTES: usize = 4096;

/// A chart of the page.
const CHART: &str =
    "Rstream(select op, count(*) as n from IO [range 1 s slide 1 s] where op = 'w' group by op)";

/// Writes `count` requests to a disk, past the page cache.
pub fn write_requests(path: &str, count: usize) {
    const O_DIRECT: i32 = 0o40000;
    let mut options = File::options();
    let mut file = options
        .write(true)
        .custom_flags(O_DIRECT)
        .open(path)
        .unwrap();
    // Direct I/O requires memory at a multiple of the sector size.
    let memory = vec![7; 2 * REQUEST_BYTES];
    let at = memory.as_ptr().align_offset(REQUEST_BYTES);
    for i in 0..count {
        let position = (i % 64) * REQUEST_BYTES;
        file.seek(SeekFrom::Start(position as u64)).unwrap();
        file.write_all(&memory[at..at + REQUEST_BYTES]).unwrap();
    }
}

impl Console {
    /// The answer of a query on the retained requests, one row per line.
    fn recent(&self, text: &str) -> Vec<Value> {
        let reply = self.query(text, "&source=recent");
        assert_eq!(reply.status, 200, "{}", reply.body);
        let lines = reply.body.lines().filter(|line| line.starts_with('{'));
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The bytes of a response, its head included.
    fn bytes(&self, path: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (address, cookie) = (&self.address, &self.cookie);
        let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n");
        write!(stream, "{head}Connection: close\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    }

    /// Waits until the shared source has reported an instant.
    pub fn wait_for_source(&self) {
        let started = Instant::now();
        while self.get("/api/v1/recent").json()["until_ms"].is_null() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "the source does not start"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The processes below a process that run a command of weir.
fn children(parent: u32, command: &str) -> usize {
    let path = format!("/proc/{parent}/task");
    let threads = fs::read_dir(path).unwrap().flatten();
    let lists = threads.filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
    let pids = lists.collect::<Vec<_>>().join(" ");
    let runs = |pid: &&str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes())
    };
    pids.split_whitespace().filter(runs).count()
}

#[test]
fn retained_requests_are_those_that_were_made() {
    let test = "retained_requests_are_those_that_were_made";
    if !watchable(test) {
        return;
    }
    let Some(disk) = loop_disk(test) else { return };
    let console = Console::start(&["--device", disk.path()]);
    console.wait_for_source();
    write_requests(disk.path(), 500);
    let rows = "select ts, bytes, latency from IO where op = 'w' and comm <> ''";
    let started = Instant::now();
    let mut found = Vec::new();
    while found.len() < 500 && started.elapsed() < Duration::from_secs(30) {
        found = console.recent(rows);
    }
    assert_eq!(found.len(), 500);
    assert!(found.iter().all(|row| row["bytes"] == REQUEST_BYTES));
    // A second query of the same requests, with conditions as of a rectangle, counts the same rows.
    let latencies: Vec<i64> = found
        .iter()
        .map(|row| row["latency"].as_i64().unwrap())
        .collect();
    let limit = latencies[250];
    let expected = latencies
        .iter()
        .filter(|latency| **latency <= limit)
        .count();
    let last = found[499]["ts"].as_str().unwrap();
    let counted = console.recent(&format!(
        "select count(*) as n from IO where op = 'w' and latency <= {limit} and ts <= timestamp '{last}'"
    ));
    assert_eq!(counted[0]["n"], expected, "{counted:?}");
    // The other formats have the same rows.
    let text = format!("{rows} and bytes = {REQUEST_BYTES}");
    let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let reply = console.get(&format!(
        "/api/v1/query?q={encoded}&source=recent&format=csv"
    ));
    assert_eq!(
        reply.body.matches("\r\n20").count() + reply.body.matches("\n20").count(),
        500
    );
    // A stream that is not retained is refused with the reason.
    let reply = console.query("select ts from IOstream", "&source=recent");
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert!(reply.body.contains("other streams"), "{}", reply.body);
}

#[test]
fn one_process_serves_the_charts_of_all_tabs() {
    let test = "one_process_serves_the_charts_of_all_tabs";
    if !watchable(test) {
        return;
    }
    let Some(disk) = loop_disk(test) else { return };
    let console = Console::start(&["--device", disk.path()]);
    console.wait_for_source();
    let mut tabs = [console.socket(), console.socket()];
    for tab in &mut tabs {
        for id in 0..6 {
            subscribe(tab, id, &format!("{CHART} -- {id}"));
        }
    }
    let mut seen = 0;
    let started = Instant::now();
    // Each chart of the first tab has a frame with rows.
    let mut charts = std::collections::BTreeSet::new();
    while charts.len() < 6 {
        assert!(started.elapsed() < Duration::from_secs(60), "{charts:?}");
        write_requests(disk.path(), 20);
        seen += 20;
        if let Message::Binary(frame) = tabs[0].read().unwrap() {
            let [id, _, sequence, _, rows] = header(&frame);
            acknowledge(&mut tabs[0], id, sequence);
            if rows > 0 {
                charts.insert(id);
            }
        }
    }
    assert!(seen > 0);
    let list = console.get("/api/v1/queries").json();
    let queries = list["queries"].as_array().unwrap();
    assert_eq!(queries.len(), 6, "{list}");
    assert!(
        queries
            .iter()
            .all(|one| one["runs_in"] == "shared" && one["subscribers"] == 2),
        "{list}"
    );
    assert_eq!(children(console.child.id(), "console-source"), 1);
    assert_eq!(children(console.child.id(), "query"), 0);
    assert!(
        list["shared"]["memory_bytes"].as_u64().unwrap() > 0,
        "{list}"
    );
}

#[test]
fn a_standing_query_runs_without_a_tab_until_it_is_ended() {
    let test = "a_standing_query_runs_without_a_tab_until_it_is_ended";
    if !watchable(test) {
        return;
    }
    let Some(disk) = loop_disk(test) else { return };
    let console = Console::start(&["--device", disk.path()]);
    console.wait_for_source();
    let text = "select op, count(*) as n from IO group by op";
    let made = console.post("/api/v1/queries", &json!({ "q": text, "name": "load" }));
    assert_eq!(made.status, 201, "{}", made.body);
    let again = console.post("/api/v1/queries", &json!({ "q": text, "name": "load" }));
    assert_eq!(again.status, 400);
    assert!(again.body.contains("load"), "{}", again.body);
    let wrong = console.post(
        "/api/v1/queries",
        &json!({ "q": "select avrg(latency) from IO" }),
    );
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    let foreign = [
        ("Origin", "http://other.example".to_owned()),
        ("Cookie", console.cookie.clone()),
    ];
    let body = json!({ "q": text }).to_string();
    let reply = console.post_with("/api/v1/queries", &foreign, "application/json", &body);
    assert_eq!(reply.status, 403);

    let query = || console.get("/api/v1/queries").json()["queries"][0].clone();
    let started = Instant::now();
    while query()["rows"] == 0 {
        write_requests(disk.path(), 10);
        assert!(started.elapsed() < Duration::from_secs(60), "{}", query());
    }
    assert_eq!(
        (&query()["is_standing"], &query()["subscribers"]),
        (&json!(true), &json!(0))
    );
    // A tab joins it instead of starting another.
    let mut tab = console.socket();
    subscribe(&mut tab, 1, text);
    let frame = loop {
        if let Message::Binary(frame) = tab.read().unwrap() {
            break header(&frame);
        }
    };
    assert!(frame[4] > 0, "it receives the state at once");
    assert_eq!(
        console.get("/api/v1/queries").json()["queries"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let id = query()["id"].clone();
    assert_eq!(
        console
            .post("/api/v1/queries/end", &json!({ "id": id }))
            .status,
        204
    );
    assert_eq!(
        console
            .post("/api/v1/queries/end", &json!({ "id": 99_999 }))
            .status,
        404
    );
    let started = Instant::now();
    while console.get("/api/v1/status").json()["queries"] != 0 {
        assert!(started.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_shared_source_ends_with_its_console_and_rejects_others() {
    let test = "the_shared_source_ends_with_its_console_and_rejects_others";
    if !watchable(test) {
        return;
    }
    let Some(disk) = loop_disk(test) else { return };
    let mut console = Console::start(&["--device", disk.path()]);
    console.wait_for_source();
    let list = console.get("/api/v1/queries").json();
    let pid = list["shared"]["pid"].as_u64().unwrap();
    // Another process can connect to the abstract socket, and receives nothing.
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let name = format!("@weir-console-{pid}-");
    let socket = sockets
        .lines()
        .find_map(|line| line.split(' ').find(|word| word.starts_with(&name)));
    let socket = socket.expect("the socket of the source");
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&socket[1..]).unwrap();
    let mut stream = std::os::unix::net::UnixStream::connect_addr(&address).unwrap();
    // The source may have closed the connection already.
    let _ = stream.write_all(b"{\"type\":\"interval\"}\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer, b"");
    console.child.kill().unwrap();
    console.child.wait().unwrap();
    let started = Instant::now();
    while fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()) {
        assert!(started.elapsed() < Duration::from_secs(30), "{pid} runs on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn recordings_of_the_folder_are_read_and_no_other_file() {
    let scratch = Scratch::new();
    let folder = scratch.path().join("recordings");
    fs::create_dir(&folder).unwrap();
    fs::copy(super::SAMPLE, folder.join("one.parquet")).unwrap();
    let folder = folder.to_str().unwrap();
    let console = Console::start(&["--from", super::SAMPLE, "--recordings", folder]);
    let listed = console.get("/api/v1/recordings").json();
    assert_eq!(listed[0]["name"], "one.parquet");
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let text = "select op, count(*) as n from IO group by op order by op";
    let reply = console.query(text, "&source=recording:one.parquet&format=csv");
    let expected = run(&[
        "query",
        "--from",
        super::SAMPLE,
        "--final",
        "--format",
        "csv",
        text,
    ]);
    assert_eq!(reply.body, expected.fine());
    for name in ["../one.parquet", "two.parquet", "%2fetc%2fpasswd", ""] {
        let reply = console.query(text, &format!("&source=recording:{name}"));
        assert_eq!(reply.status, 400, "{name}: {}", reply.body);
    }
    let info = console
        .get("/api/v1/info?source=recording:one.parquet")
        .json();
    assert_eq!(info["issued"], 1030);
    let report = console.get("/api/v1/characterise?source=recording:one.parquet&disk=/dev/loop1");
    assert_eq!(report.json()["profiles"].as_array().unwrap().len(), 1);
    let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let path = format!("/api/v1/query?q={encoded}&source=recording:one.parquet&format=parquet");
    let bytes = console.bytes(&path);
    let marks = bytes.windows(4).filter(|part| part == b"PAR1").count();
    assert_eq!(marks, 2, "a Parquet file begins and ends with its mark");
    // Limits are changed only where the console may act.
    let reply = console.post("/api/v1/leases/end", &json!({ "id": "1" }));
    assert_eq!(reply.status, 403, "{}", reply.body);
}

/// A tapdisk whose disk `/dev/vda` of a VM has no requests; it ends with the test.
pub struct ServedVm {
    tapdisk: Child,
    pub name: String,
    socket: String,
}

impl ServedVm {
    /// `None`, with the reason, where processes are not visible.
    pub fn start(test: &str, scratch: &Scratch) -> Option<ServedVm> {
        let (image, socket) = (scratch.file("disk.raw"), scratch.file("nbd"));
        File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let name = format!("console-{}-{}", std::process::id(), test.len());
        let nbd = format!("unix:{socket}");
        let mut command = weir(&["tapdisk", "--image", &image, "--nbd", &nbd]);
        command.args(["--vm", &name, "--vdisk", "/dev/vda"]);
        let tapdisk = command.stderr(Stdio::null()).spawn().unwrap();
        let vm = ServedVm {
            tapdisk,
            name,
            socket,
        };
        wait_until("the tapdisk answers", || {
            run(&["tapdisk", "status", &vm.socket]).code == 0
        });
        let proposed = ["act", "limit", "--vm", &vm.name, "--iops", "100"];
        if run(&proposed).code == 2 {
            skipped(test, "the processes of this host are not visible");
            return None;
        }
        Some(vm)
    }

    /// Its limit of requests per second, 0 without one.
    pub fn iops(&self) -> u64 {
        let status = run(&["tapdisk", "status", "--json", &self.socket]).fine();
        let status: Value = serde_json::from_str(&status).unwrap();
        status["disks"][0]["limits"]["iops"].as_u64().unwrap()
    }
}

impl Drop for ServedVm {
    fn drop(&mut self) {
        let _ = self.tapdisk.kill();
        let _ = self.tapdisk.wait();
    }
}

#[test]
fn a_disk_is_limited_by_a_client_and_restored_at_each_end() {
    let test = "a_disk_is_limited_by_a_client_and_restored_at_each_end";
    let scratch = Scratch::new();
    let Some(vm) = ServedVm::start(test, &scratch) else {
        return;
    };
    let state = scratch.file("leases");
    let console = Console::start(&["--act", "console-*", "--act-state", &state]);
    let limit = |more: Value| {
        let mut body = json!({ "vm": vm.name, "disk": "vda", "iops": 200, "for": "1m" });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        console.post("/api/v1/leases", &body)
    };
    let proposed = limit(json!({}));
    assert_eq!(proposed.status, 200, "{}", proposed.body);
    let command = proposed.json()["command"].as_str().unwrap().to_owned();
    assert!(command.contains("\"iops\":200"), "{command}");
    assert_eq!(vm.iops(), 0);
    let applied = limit(json!({ "apply": true }));
    assert_eq!(applied.status, 201, "{}", applied.body);
    assert_eq!(
        (vm.iops(), &applied.json()["limit"]["iops"]),
        (200, &json!(200))
    );
    let leases = console.get("/api/v1/leases").json();
    assert_eq!(
        (&leases[0]["id"], &leases[0]["held"]),
        (&applied.json()["id"], &json!(true))
    );
    let ended = console.post("/api/v1/leases/end", &json!({ "id": applied.json()["id"] }));
    assert_eq!(ended.status, 204, "{}", ended.body);
    assert_eq!(vm.iops(), 0);
    // Errors change nothing.
    for (more, status, part) in [
        (
            json!({ "vm": "mail", "apply": true }),
            403,
            "of console-* only",
        ),
        (json!({ "iops": 1, "apply": true }), 400, "below the floor"),
        (
            json!({ "disk": "vdb", "apply": true }),
            400,
            "has no disk vdb",
        ),
        (
            json!({ "disk": "--help", "apply": true }),
            400,
            "has no disk --help",
        ),
        (
            json!({ "for": "soon", "apply": true }),
            400,
            "expected a number",
        ),
        (json!({ "rate": 1 }), 422, "unknown field"),
    ] {
        let reply = limit(more);
        assert_eq!(reply.status, status, "{}", reply.body);
        assert!(reply.body.contains(part), "{part}: {}", reply.body);
    }
    assert_eq!(vm.iops(), 0);
    // With the console, its limits end.
    assert_eq!(limit(json!({ "apply": true })).status, 201);
    assert_eq!(vm.iops(), 200);
    drop(console);
    wait_until("the limit is restored", || vm.iops() == 0);
    // So they do with a console that is killed.
    let mut console = Console::start(&["--act", "console-*", "--act-state", &state]);
    let body = json!({ "vm": vm.name, "iops": 200, "for": "10m", "apply": true });
    assert_eq!(console.post("/api/v1/leases", &body).status, 201);
    assert_eq!(vm.iops(), 200);
    console.kill();
    wait_until("the limit of a killed console is restored", || {
        vm.iops() == 0
    });
    let other = Console::start(&["--act-state", &state]);
    let reply = other.post("/api/v1/leases", &json!({ "vm": vm.name, "iops": 200 }));
    assert_eq!(reply.status, 403, "{}", reply.body);
    assert!(reply.body.contains("--act VM"), "{}", reply.body);
}
