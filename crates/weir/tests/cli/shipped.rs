//! Shipped streams of probes: each is listed, and attached where the kernel has it; their rows
//! equal the kernel's own counts in /proc.

use std::fs::{read_to_string, write};
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::live::watchable;
use crate::support::{Scratch, interrupt, run, skipped, weir};

const DAY_NS: i64 = 86_400_000_000_000;

/// How long rows may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A running query.
pub struct Observed {
    weir: Child,
    rows: Arc<Mutex<Vec<Value>>>,
}

impl Observed {
    pub fn start(query: &str) -> Observed {
        let args = ["query", "--format", "json", "--keep-privileges", query];
        let mut weir = weir(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let rows = Arc::new(Mutex::new(Vec::new()));
        let (stdout, read) = (weir.stdout.take().expect("piped"), rows.clone());
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            for line in lines {
                let row = serde_json::from_str(&line).expect("JSON");
                read.lock().expect("no panic").push(row);
            }
        });
        Observed { weir, rows }
    }

    pub fn any(&self, accept: impl Fn(&Value) -> bool) -> bool {
        self.rows.lock().expect("no panic").iter().any(accept)
    }

    /// The rows so far.
    pub fn rows(&self) -> Vec<Value> {
        self.rows.lock().expect("no panic").clone()
    }

    fn count(&self, accept: impl Fn(&Value) -> bool) -> i64 {
        let rows = self.rows.lock().expect("no panic");
        rows.iter().filter(|row| accept(row)).count() as i64
    }

    /// Repeats `work` until there is such a row.
    fn until(&self, accept: impl Fn(&Value) -> bool, mut work: impl FnMut()) {
        let start = Instant::now();
        while !self.any(&accept) {
            assert!(start.elapsed() < TIMEOUT, "no row is observed");
            work();
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        interrupt(&self.weir);
        self.weir.wait().expect("it ends");
    }
}

/// The time of the day.
fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("after 1970").as_nanos() as i64 % DAY_NS
}

/// The time of the day of a row: `2026-01-02T03:04:05.000000006Z`.
fn ts_ns(row: &Value) -> i64 {
    let text = row["ts"].as_str().expect("a time");
    let number = |from: usize, to: usize| text[from..to].parse::<i64>().expect("a number");
    let seconds = (number(11, 13) * 60 + number(14, 16)) * 60 + number(17, 19);
    seconds * 1_000_000_000 + number(20, 29)
}

/// Whether the row is of the interval between two times of the day.
fn is_between(row: &Value, start: i64, end: i64) -> bool {
    (ts_ns(row) - start).rem_euclid(DAY_NS) < (end - start).rem_euclid(DAY_NS)
}

fn is_after(row: &Value, time: i64) -> bool {
    (ts_ns(row) - time).rem_euclid(DAY_NS) < DAY_NS / 2
}

fn pause() {
    thread::sleep(Duration::from_micros(50));
}

/// The number of a field of a file.
fn number(file: &str, line: impl Fn(&str) -> bool, field: usize) -> i64 {
    let text = read_to_string(file).expect("Linux");
    let line = text.lines().find(|l| line(l)).expect("the line");
    let field = line.split_whitespace().nth(field).expect("the field");
    field.parse().expect("a number")
}

fn tid() -> i64 {
    let path = std::fs::read_link("/proc/thread-self").expect("Linux");
    let name = path.file_name().expect("a thread").to_string_lossy();
    name.parse().expect("a number")
}

#[test]
fn each_stream_is_listed_and_attached_or_absent() {
    if !watchable("shipped streams") {
        return;
    }
    let json: Value = serde_json::from_str(&run(&["streams", "--json"]).fine()).expect("JSON");
    let all = json.as_array().expect("a list").iter();
    let names = |stream: &Value| stream["name"].as_str().expect("a name").to_owned();
    let shipped: Vec<&Value> = all.skip_while(|s| s["name"] != "run_queue").collect();
    let (absent, found): (Vec<&Value>, Vec<&Value>) =
        shipped.into_iter().partition(|s| s.get("absent").is_some());
    for stream in absent {
        let why = stream["absent"].as_str().expect("a cause");
        assert!(why.starts_with("this kernel has no"), "{stream}");
        let refused = run(&["query", &format!("select * from {}", names(stream))]);
        assert!(
            refused.code == 2 && refused.err.contains(why),
            "{}",
            refused.err
        );
    }
    assert!(found.len() >= 8, "{found:?}");
    let scratch = Scratch::new();
    let part = |stream: &&Value| {
        let (name, out) = (names(stream), scratch.file(&names(stream)));
        format!("query : select count(*) from {name} where cpu < 0;\ndest : {out}\n")
    };
    let script = scratch.write("all.cql", &found.iter().map(part).collect::<String>());
    run(&["run", "--for", "100ms", &script]).fine();
    let columns = run(&["streams", "on_cpu"]).fine();
    assert!(
        columns.contains("latency") && columns.contains("begin"),
        "{columns}"
    );
}

/// The times that a thread ran equal the kernel's count of its time slices.
#[test]
fn slices_of_a_thread_equal_those_of_schedstat() {
    const SCHEDSTAT: &str = "/proc/thread-self/schedstat";
    if !watchable("on_cpu") || read_to_string(SCHEDSTAT).is_err() {
        return;
    }
    let slices = || number(SCHEDSTAT, |_| true, 2);
    let tid = tid();
    let observed = Observed::start(&format!("select ts, pid from on_cpu where thread = {tid}"));
    observed.until(|_| true, pause);
    pause();
    // On a busy host the thread may lose its processor while it reads the count.
    let read = || (now_ns(), slices(), now_ns());
    let (start, before, started) = read();
    (0..300).for_each(|_| pause());
    let (ending, after, end) = read();
    observed.until(|row| is_after(row, end), pause);
    let rows = |from, to| observed.count(|row| is_between(row, from, to));
    let (least, most) = (rows(started, ending), rows(start, end));
    let slices = after - before;
    assert!(
        slices >= 300 && least - 1 <= slices && slices <= most + 1,
        "{least} to {most} rows, {slices} slices"
    );
}

/// The page faults of a thread are among those that the kernel counts for it and for all.
#[test]
fn faults_of_a_thread_are_those_that_the_kernel_counts() {
    const PAGES: usize = 10_000;
    if !watchable("page_faults") || run(&["streams", "page_faults"]).code != 0 {
        return;
    }
    // A new mapping, so large that the allocator does not keep it.
    let touch = |pages: usize| {
        let mut memory = vec![0_u8; 64 << 20];
        (0..pages).for_each(|page| memory[page * 4096] = black_box(1));
        black_box(&memory);
    };
    let own = || number("/proc/thread-self/stat", |_| true, 9);
    let all = || number("/proc/vmstat", |line| line.starts_with("pgfault "), 1);
    let tid = tid();
    let observed = Observed::start(&format!("select ts from page_faults where tid = {tid}"));
    observed.until(|_| true, || touch(1));
    let before = (all(), own());
    let start = now_ns();
    touch(PAGES);
    let end = now_ns();
    let (own, all) = (own() - before.1, all() - before.0);
    observed.until(|row| is_after(row, end), || touch(1));
    let rows = observed.count(|row| is_between(row, start, end));
    // The kernel may map 512 pages at once.
    assert!(rows >= PAGES as i64 / 512, "{rows}");
    // Each count is read by faults of its own, some of them in the kernel.
    assert!(
        (0..=20).contains(&(own - rows)) && all >= rows,
        "{rows}, {own}, {all}"
    );
}

/// Two network devices that are connected; removed at the end.
struct Link([String; 2]);

impl Link {
    fn new() -> Result<Link, String> {
        let names = ["a", "b"].map(|end| format!("wp{}{end}", std::process::id()));
        let [a, b] = &names;
        let ip = |args: &[&str]| weir_testing::run("ip", args).map_err(|e| format!("{e:#}"));
        ip(&["link", "add", a, "type", "veth", "peer", "name", b])?;
        let link = Link(names.clone());
        for end in &names {
            // No packets but those of the test.
            let _ = write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1");
            ip(&["link", "set", end, "arp", "off", "up"])?;
        }
        ip(&[
            "addr",
            "add",
            "198.18.77.1/24",
            "brd",
            "198.18.77.255",
            "dev",
            a,
        ])?;
        Ok(link)
    }

    /// A counter of a device: bytes and packets received at 0 and 1, sent at 8 and 9.
    fn counter(&self, end: usize, field: usize) -> i64 {
        let name = format!("{}:", self.0[end]);
        number("/proc/net/dev", |l| l.trim().starts_with(&name), field + 1)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = weir_testing::run("ip", &["link", "del", &self.0[0]]);
    }
}

/// Packets and bytes equal the counters of the devices.
#[test]
fn packets_equal_the_counters_of_their_devices() {
    const PACKETS: i64 = 200;
    if !watchable("net") {
        return;
    }
    let link = match Link::new() {
        Ok(link) => link,
        Err(why) => return skipped("net", why),
    };
    let socket = UdpSocket::bind("198.18.77.1:0").expect("the address of the device");
    socket.set_broadcast(true).expect("a socket");
    let send = |bytes: usize| {
        let sent = socket.send_to(&vec![7; bytes], "198.18.77.255:9");
        sent.expect("a broadcast");
    };
    for (stream, end, field, header) in [("net_sent", 0, 8, 0), ("net_received", 1, 0, 14)] {
        let device = &link.0[end];
        let query = format!("select bytes from {stream} where device = '{device}'");
        let observed = Observed::start(&query);
        observed.until(|_| true, || send(10));
        let before = [field, field + 1].map(|field| link.counter(end, field));
        (0..PACKETS).for_each(|_| send(1_000));
        let after = [field, field + 1].map(|field| link.counter(end, field));
        observed.until(|row| row["bytes"] == 500 + 42 - header, || send(500));
        let rows = observed.count(|row| row["bytes"] == 1_042 - header);
        assert_eq!((rows, after[1] - before[1]), (PACKETS, PACKETS), "{stream}");
        assert_eq!(after[0] - before[0], 1_042 * PACKETS, "{stream}");
    }
    let query = format!(
        "select bytes, latency from net_waits where device = '{}'",
        link.0[0]
    );
    let observed = Observed::start(&query);
    observed.until(|_| true, || send(10));
    let before = link.counter(0, 9);
    (0..PACKETS).for_each(|_| send(1_000));
    let sent = link.counter(0, 9) - before;
    observed.until(|row| row["bytes"] == 500 + 42, || send(500));
    let waited = observed.count(|row| row["bytes"] == 1_042 && row["latency"].as_i64() > Some(0));
    assert_eq!((waited, sent), (PACKETS, PACKETS));
}

#[test]
fn a_connection_has_a_round_trip_time() {
    if !watchable("shipped") {
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let query = format!("select round_trip, bytes from tcp_round_trips where sport = {port}");
    let observed = Observed::start(&query);
    observed.until(
        |row| row["bytes"] == 77 && row["round_trip"].as_i64() > Some(0),
        || {
            use std::io::{Read, Write};
            client.write_all(&[0; 77]).unwrap();
            let mut buffer = [0; 77];
            server.read_exact(&mut buffer).unwrap();
            server.write_all(&buffer).unwrap();
            client.read_exact(&mut buffer).unwrap();
        },
    );
}
