//! An agent in a guest, and a tapdisk with an agent on the host: each request of a plan is tied to
//! the request of its virtual disk and to those of the host's device, and takes the time that the
//! guest's kernel counts.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testing::kernel::{GuestKernel, LINUX_6_1, LINUX_6_12};
use weir_testing::{
    DiskLoad, Fleet, GuestDisk, Kit, LoopDisk, MemoryFolder, MonitorProcess, Scratch, Tools,
    VhostDisk, WriteLimit, is_full, run, skipped,
};

use super::boot::Watched;
use crate::tapdisk::Tapdisk;
use crate::{live_kit_of, tapdisk};

/// The name of the VM on its host.
const VM: &str = "web";

/// The UUID that the firmware of the guest reports.
const UUID: &str = "9f0b1c52-0d3e-4c7a-8f5d-0123456789ab";

/// The host, as QEMU's network shows it to the guest.
const HOST_IN_GUEST: &str = "10.0.2.2";

/// Where the guest has the agent's files.
const PLACE: &str = "/fleet";

/// Mebibytes of the image.
const IMAGE_MEBIBYTES: usize = 64;

const MEMORY_MEBIBYTES: u32 = 1024;

const GUEST_COLUMNS: &str = "op, sector, sectors, vm, host, vdisk, guest, guest_disk, comm, error, \
                             latency, guest_wait, guest_queue, vdisk_wait, vdisk_service, \
                             guest_return, clock_error, received, req_id, unmatched";

const GUEST_STAGES: [&str; 5] = [
    "guest_wait",
    "guest_queue",
    "vdisk_wait",
    "vdisk_service",
    "guest_return",
];

/// The columns of the same requests, and of those of the host's device.
const PATH_COLUMNS: [&str; 12] = [
    "g.req_id as req_id",
    "p.op as op",
    "p.vm as vm",
    "p.vdisk as vdisk",
    "p.vsector as vsector",
    "p.bytes as bytes",
    "p.pdisk as pdisk",
    "p.path as path",
    "p.offset as offset",
    "p.latency as latency",
    "p.vdisk_wait as vdisk_wait",
    "p.device as device",
];

/// A request of a tapdisk has one number in both streams.
const ONE_REQUEST: &str =
    "g.host = p.host and g.vdisk = p.vdisk and g.req_id % 16777216 = p.user_data % 16777216";

/// The first byte of the requests of a slow device: the time before the guest's first event of a
/// request and after its last one does not matter for them, even in emulation.
const SLOW_FROM: u64 = 32 << 20;

/// Writes per second of the slow device.
const SLOW_IOPS: u32 = 100;

/// How long the rows of requests may take, in emulation on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The mean time of a request in a guest that others keep from running; usually it is a quarter.
const BUSY_NS: f64 = 2e6;

/// How often a load is repeated until some of its requests are tied.
const LOADS_MAX: usize = 4;

/// The size of a read that shows that a query runs: no other request has it.
const MARK_BYTES: u64 = 12 << 10;

#[test]
fn requests_of_a_guest_with_6_12_are_tied_to_those_of_the_host() {
    ties(
        &LINUX_6_12,
        "requests_of_a_guest_with_6_12_are_tied_to_those_of_the_host",
    );
}

#[test]
fn requests_of_a_guest_with_6_1_are_tied_to_those_of_the_host() {
    if is_full() {
        ties(
            &LINUX_6_1,
            "requests_of_a_guest_with_6_1_are_tied_to_those_of_the_host",
        );
    }
}

/// A query in the background, and its rows.
struct Rows {
    weir: Child,
    file: String,
}

impl Rows {
    fn start(mut command: Command, file: String) -> Rows {
        let command = command.stdin(Stdio::null());
        command.stdout(File::create(&file).unwrap());
        command.stderr(File::create(format!("{file}.err")).unwrap());
        let weir = command.spawn().unwrap();
        Rows { weir, file }
    }

    fn all(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.file).unwrap();
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines = whole.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Its messages.
    fn messages(&self) -> String {
        fs::read_to_string(format!("{}.err", self.file)).unwrap()
    }

    /// The messages of the processes that have files in the same folder.
    fn logs(&self) -> String {
        let folder = Path::new(&self.file).parent().unwrap();
        let logs = ["monitor", "host"].map(|name| {
            let text = fs::read_to_string(folder.join(format!("{name}.log")));
            format!("{name}: {}", text.unwrap_or_default())
        });
        logs.concat()
    }

    /// Waits until it has this number of rows of one kind, while `work` continues.
    #[track_caller]
    fn wait(&self, count: usize, is_one: impl Fn(&Value) -> bool, mut work: impl FnMut()) {
        let within = Instant::now() + TIMEOUT;
        loop {
            let rows = self.all();
            let found = rows.iter().filter(|row| is_one(row)).count();
            if found >= count {
                return;
            }
            assert!(
                Instant::now() < within,
                "{found} of {count} rows, {} in all, the last {:?}\n{}{}",
                rows.len(),
                rows.last(),
                self.messages(),
                self.logs()
            );
            work();
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        let _ = self.weir.kill();
        let _ = self.weir.wait();
    }
}

/// The host with its device and its agent, and the monitor.
struct Host {
    monitor: MonitorProcess,
    fleet: Fleet,
    image: String,
    sockets: MemoryFolder,
    tapdisk: Tapdisk,
    device: LoopDisk,
}

impl Host {
    fn start() -> Host {
        let fleet = Fleet::new(
            Path::new(env!("CARGO_BIN_EXE_weir")),
            &["host", "inside"],
            128,
        );
        let fleet = fleet.unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let monitor = fleet.monitor(listen, "idle = \"60 s\"").unwrap();
        let device = LoopDisk::new(2 * IMAGE_MEBIBYTES as u64).unwrap();
        let image = device.file_system().unwrap().join("web.raw");
        // Blocks that were not written would be read without a request.
        fs::write(&image, vec![0x11; IMAGE_MEBIBYTES << 20]).unwrap();
        run("sync", &[]).unwrap();
        let image = image.to_str().unwrap().to_owned();
        let sockets = MemoryFolder::new(16).unwrap();
        let served = Tapdisk::start(&sockets, std::slice::from_ref(&image), &[VM]);
        Host {
            monitor,
            fleet,
            image,
            sockets,
            tapdisk: served,
            device,
        }
    }

    /// A guest that knows the monitor, with its disk as `vda` and an agent.
    fn guest(&self, kit: &Kit, test: &str) -> Watched {
        let folder = Scratch::new();
        let tools =
            Tools::make(&folder.path().join("tools"), &[env!("CARGO_BIN_EXE_weir")]).unwrap();
        let port = self.monitor.address().port();
        let (files, image) = (folder.path().join("files"), folder.file("fleet"));
        let monitor = format!("{HOST_IN_GUEST}:{port}");
        let state = "state = \"/tmp/state\"\nguest = \"auto\"";
        self.fleet
            .export_agent("inside", &monitor, state, &files, PLACE)
            .unwrap();
        let from = files.to_str().unwrap();
        run(
            "mke2fs",
            &["-q", "-F", "-t", "ext4", "-d", from, &image, "8M"],
        )
        .unwrap();
        let mut args = VhostDisk::shared_memory_of(MEMORY_MEBIBYTES);
        args.extend(["-smp", "2", "-uuid", UUID].map(str::to_owned));
        args.extend(["-netdev", "user,id=net"].map(str::to_owned));
        args.extend(["-device", "virtio-net-pci,netdev=net"].map(str::to_owned));
        args.extend(VhostDisk::new("disk0", &self.sockets.file(VM)).args());
        for (id, image) in [("tools", folder.file("tools")), ("fleet", image)] {
            args.extend(GuestDisk::new(id, &image).buffered().args());
        }
        let mut guest = Watched::boot_named(kit, test, VM, &args, tools, folder).unwrap();
        guest.run(&format!(
            "mkdir {PLACE} && mount -t ext4 -o ro /dev/vdc {PLACE}"
        ));
        guest.run("mkdir -p /lib64 && ln -s /tools/lib/ld-linux-x86-64.so.2 /lib64/");
        guest.run("export LD_LIBRARY_PATH=/tools/lib");
        guest.run("load_module virtio_net && ifconfig lo 127.0.0.1 && ifconfig eth0 10.0.2.15");
        guest.run(&format!(
            "/tools/bin/weir agent --config {PLACE}/agent.toml 2> /tmp/agent.err &"
        ));
        guest
    }

    /// Waits until both agents are connected.
    fn wait_for_agents(&self, guest: &mut Watched) {
        let within = Instant::now() + TIMEOUT;
        loop {
            let hosts = self.fleet.listed(&self.monitor, "hosts").unwrap();
            if hosts.len() == 2 {
                return;
            }
            let log = guest.run("cat /tmp/agent.err");
            assert!(Instant::now() < within, "{hosts:?}\n{log}");
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Several requests in flight, larger ones one at a time, and those of the slow device; no two
/// overlap.
fn loads() -> [DiskLoad; 3] {
    let deep = DiskLoad {
        read: 50,
        write: 50,
        count: 400,
        depth: 4,
        span: 16 << 20,
        seed: 3,
        ..DiskLoad::on("/dev/vda")
    };
    let large = DiskLoad {
        read: 30,
        write: 70,
        count: 60,
        bytes: 64 << 10,
        start: 16 << 20,
        span: 16 << 20,
        seed: 4,
        ..DiskLoad::on("/dev/vda")
    };
    let slow = DiskLoad {
        read: 0,
        write: 100,
        count: 60,
        depth: 4,
        start: SLOW_FROM,
        span: 8 << 20,
        seed: 5,
        ..DiskLoad::on("/dev/vda")
    };
    [deep, large, slow]
}

fn int(row: &Value, column: &str) -> i64 {
    row[column]
        .as_i64()
        .unwrap_or_else(|| panic!("{column}: {row}"))
}

fn is_mark(row: &Value, bytes: i64) -> bool {
    row["op"] == "r" && bytes == MARK_BYTES as i64
}

/// The time that the guest's kernel counts for the requests of `vda`, in ms: of reads and writes.
fn waited_ms(guest: &mut Watched) -> i64 {
    let line = guest.run("awk '$3 == \"vda\" { print $7 + $11 }' /proc/diskstats");
    line.trim()
        .parse()
        .unwrap_or_else(|e| panic!("{line}: {e}"))
}

fn ties(kernel: &GuestKernel, test: &str) {
    let Some((kit, _turn)) = live_kit_of(test, kernel) else {
        return;
    };
    // Removed when no process is in it any more.
    let limit;
    let host = Host::start();
    let from = format!("tapdisk:{}", tapdisk::tap(&host.sockets, VM));
    let agent = host
        .fleet
        .local_agent("host", host.monitor.address(), "", &["--from", &from]);
    let _agent = agent.unwrap();
    let mut guest = host.guest(&kit, test);
    host.wait_for_agents(&mut guest);

    let queries = [
        // The guest reads its programs from another disk.
        format!("select {GUEST_COLUMNS} from GuestIO where guest_disk = '/dev/vda'"),
        format!(
            "Istream(select {} from GuestIO [range 60 s] as g, IOpath [range 60 s] as p \
             where {ONE_REQUEST})",
            PATH_COLUMNS.join(", ")
        ),
    ];
    let [of_guest, paths] = queries.map(|query| {
        let command = ["query", "--format", "json", &query];
        let name = if query.starts_with("select") {
            "guest"
        } else {
            "paths"
        };
        let command = host.fleet.command(&host.monitor, &command);
        Rows::start(command, host.fleet.file(name))
    });

    let mark = DiskLoad {
        bytes: MARK_BYTES,
        count: 4,
        span: 1 << 20,
        start: 48 << 20,
        ..DiskLoad::on("/dev/vda")
    };
    let of_guest_is_mark =
        |row: &Value| row["unmatched"].is_null() && is_mark(row, int(row, "sectors") * 512);
    let is_mark_of_path =
        |row: &Value| row["vdisk"] == "/dev/vda" && is_mark(row, int(row, "bytes"));
    of_guest.wait(8, of_guest_is_mark, || {
        guest.load(&mark);
    });
    paths.wait(4, is_mark_of_path, || {
        guest.load(&mark);
    });

    let loads = loads();
    guest.load(&loads[0]);
    guest.load(&loads[1]);
    limit = WriteLimit::new(&host.device, SLOW_IOPS);
    if let Some(limit) = &limit {
        fs::write(limit.processes(), host.tapdisk.pid().to_string()).unwrap();
    }
    let before = waited_ms(&mut guest);
    guest.load(&loads[2]);
    let counted_ms = waited_ms(&mut guest) - before;
    // The agent in the guest reads some blocks to verify that they are observed.
    let is_of_plan = |row: &Value| {
        let is_mark = int(row, "sectors") * 512 == MARK_BYTES as i64;
        row["comm"] == "load" && row["op"] != "f" && !is_mark
    };
    let requests = loads.iter().map(|load| load.count as usize).sum();
    of_guest.wait(requests, is_of_plan, || {
        guest.load(&mark);
    });
    let mut rows = of_guest.all();
    rows.retain(is_of_plan);
    assert_are_of(&rows, &loads);
    let last = rows.iter().map(|row| int(row, "req_id")).max().unwrap();
    let is_later = |row: &Value| int(row, "req_id") > last;
    paths.wait(1, is_later, || {
        guest.load(&mark);
    });
    // The rows of a request may be there after those of a later one.
    let ids = rows.iter().map(|row| int(row, "req_id"));
    let missing = RefCell::new(ids.collect::<BTreeSet<i64>>());
    let is_last_missing = |row: &Value| {
        let mut missing = missing.borrow_mut();
        missing.remove(&int(row, "req_id"));
        missing.is_empty()
    };
    paths.wait(1, is_last_missing, || ());
    let mut by_request: BTreeMap<i64, Vec<Value>> = BTreeMap::new();
    for row in paths.all() {
        by_request.entry(int(&row, "req_id")).or_default().push(row);
    }
    let mut felt_ns = 0;
    for row in &rows {
        is_complete(row);
        if int(row, "sector") as u64 * 512 >= SLOW_FROM {
            felt_ns += int(row, "latency");
        }
        is_on_the_host(row, &by_request[&int(row, "req_id")], &host);
    }
    let felt_ms = felt_ns / 1_000_000;
    println!("{test}: the guest's kernel counted {counted_ms} ms, the rows have {felt_ms} ms");
    match limit {
        None => skipped(
            test,
            "no limits of blkio, cgroups v1: no requests that are long enough",
        ),
        Some(_) => assert!(
            (felt_ms - counted_ms).abs() * 50 <= counted_ms,
            "the guest's kernel counted {counted_ms} ms, the rows have {felt_ms} ms"
        ),
    }
    let summary = of_guest.messages();
    assert!(!summary.contains("lost"), "{summary}");
    if limit.is_some() {
        let disk = slowest(&host, &mut guest, &loads[2], || ());
        assert_eq!(disk["dominant"]["level"], "vdisk_service", "{disk}");
    }
    let reads = DiskLoad {
        read: 100,
        write: 0,
        count: 40,
        depth: 1,
        seed: 6,
        ..loads[0].clone()
    };
    let mut starved = None;
    let pid = guest.pid();
    let usual = slowest(&host, &mut guest, &reads, || ());
    let slow = slowest(&host, &mut guest, &reads, || {
        starved = Some(Starved::new(pid));
    });
    let level = slow["dominant"]["level"].as_str().unwrap();
    assert!(
        ["guest_queue", "guest_return"].contains(&level),
        "{slow}: the processors of the guest do not run"
    );
    // Emulation has most of its time there as well.
    let in_guest = |disk: &Value| {
        let levels = ["guest_queue", "guest_return"].map(|level| &disk["levels"][level]["mean"]);
        let means = levels.map(|mean| mean.as_f64().unwrap());
        means.iter().sum::<f64>()
    };
    let (usual_ns, slow_ns) = (in_guest(&usual), in_guest(&slow));
    println!("{test}: {usual_ns:.0} ns in the guest usually, {slow_ns:.0} ns starved, {level}");
    if usual_ns > BUSY_NS {
        skipped(
            test,
            "other processes keep the guest from running at all times",
        );
    } else {
        assert!(slow_ns > 2.0 * usual_ns, "{usual} {slow}");
    }
}

/// A process that has little of one processor of the host, since others keep it busy.
struct Starved {
    pid: u32,
    busy: [Child; 3],
}

impl Starved {
    fn new(pid: u32) -> Starved {
        let busy = [(); 3].map(|()| {
            let mut busy = Command::new("taskset");
            busy.args(["-c", "0", "sh", "-c", "while :; do :; done"]);
            busy.spawn().unwrap()
        });
        let pid_text = pid.to_string();
        run("taskset", &["-a", "-c", "-p", "0", &pid_text]).unwrap();
        Starved { pid, busy }
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        for busy in &mut self.busy {
            let _ = busy.kill();
            let _ = busy.wait();
        }
        let all = format!("0-{}", thread::available_parallelism().unwrap().get() - 1);
        // The guest may have ended.
        let _ = run("taskset", &["-a", "-c", "-p", &all, &self.pid.to_string()]);
    }
}

/// The disk in the table of `weir path` while a load runs, of the interval with the most time;
/// `plant` delays the load.
fn slowest(host: &Host, guest: &mut Watched, load: &DiskLoad, plant: impl FnOnce()) -> Value {
    let words = ["path", "--json", "-w", VM, "-i", "vda", "500ms"];
    let command = host.fleet.command(&host.monitor, &words);
    let tables = Rows::start(command, host.fleet.file("tables"));
    let total = |table: &Value, what: &str| {
        let disks = table["disks"].as_array().unwrap();
        let totals = disks.iter().map(|disk| int(&disk["levels"]["total"], what));
        totals.sum::<i64>()
    };
    // It runs when it has a table.
    let mark = DiskLoad {
        count: 4,
        ..load.clone()
    };
    tables.wait(
        1,
        |table| total(table, "requests") > 0,
        || {
            guest.load(&mark);
        },
    );
    plant();
    // The times of requests that are not tied are those of the guest alone: a guest that hardly
    // runs may have a clock that jumps.
    let tied = |table: &Value| {
        let of_disk = &table["disks"][0];
        let unmatched = of_disk["unmatched"].as_object().unwrap().values();
        total(table, "requests") - unmatched.map(|count| count.as_i64().unwrap()).sum::<i64>()
    };
    for _ in 0..LOADS_MAX {
        let before = tables.all().len();
        guest.load(load);
        let is_complete = |_: &Value| {
            let all = tables.all();
            let requests = all
                .iter()
                .skip(before)
                .map(|table| total(table, "requests"));
            requests.sum::<i64>() >= load.count as i64
        };
        tables.wait(1, is_complete, || ());
        let all = tables.all().into_iter().skip(before);
        let of_ties = all.filter(|table| total(table, "requests") > 0 && tied(table) > 0);
        if let Some(most) = of_ties.max_by_key(|table| total(table, "sum")) {
            return most["disks"][0].clone();
        }
    }
    panic!(
        "no request of {LOADS_MAX} loads is tied: {:?}",
        tables.all()
    )
}

/// That the rows are the requests of the loads, each once.
#[track_caller]
fn assert_are_of(rows: &[Value], loads: &[DiskLoad]) {
    let requests = loads.iter().flat_map(DiskLoad::requests);
    let plan = requests.map(|r| (r.op.to_string(), r.sector as i64, r.sectors as i64));
    let found = rows.iter().map(|row| {
        let op = row["op"].as_str().unwrap().to_owned();
        (op, int(row, "sector"), int(row, "sectors"))
    });
    let (mut plan, mut found): (Vec<_>, Vec<_>) = (plan.collect(), found.collect());
    plan.sort();
    found.sort();
    let differ: Vec<_> = plan.iter().zip(&found).filter(|(a, b)| a != b).collect();
    assert!(
        found.len() == plan.len() && differ.is_empty(),
        "{} rows of {}: {:?}",
        found.len(),
        plan.len(),
        &differ[..differ.len().min(3)]
    );
}

/// That a row has the names of both sides, and times without a gap.
#[track_caller]
fn is_complete(row: &Value) {
    for (column, value) in [
        ("vm", VM),
        ("host", "host"),
        ("vdisk", "/dev/vda"),
        ("guest", "inside"),
        ("guest_disk", "/dev/vda"),
        ("comm", "load"),
    ] {
        assert_eq!(row[column], value, "{column}: {row}");
    }
    assert!(
        row["unmatched"].is_null() && row["error"].is_null(),
        "{row}"
    );
    let stages = GUEST_STAGES.map(|stage| int(row, stage));
    assert_eq!(stages.iter().sum::<i64>(), int(row, "latency"), "{row}");
    let error = int(row, "clock_error");
    assert!(stages.iter().all(|stage| *stage >= -error), "{row}");
}

/// That the requests of the host's device are those of a request of the guest: all of its bytes,
/// once, at their place in the image, within the time of the virtual disk.
#[track_caller]
fn is_on_the_host(row: &Value, paths: &[Value], host: &Host) {
    let mut at = int(row, "sector");
    let mut parts: Vec<&Value> = paths.iter().collect();
    parts.sort_by_key(|path| int(path, "vsector"));
    for path in parts {
        assert_eq!(int(path, "vsector"), at, "{row} {paths:?}");
        assert_eq!(int(path, "offset"), at * 512, "{path}");
        assert_eq!(path["path"], *host.image, "{path}");
        assert_eq!(path["vm"], VM, "{path}");
        assert_eq!(path["pdisk"], host.device.path(), "{path}");
        assert_eq!(path["op"], row["op"], "{path}");
        // The kernel begins a request after the tapdisk has submitted it, possibly with others.
        assert!(
            int(path, "vdisk_wait") >= int(row, "vdisk_wait"),
            "{row} {path}"
        );
        let within = int(row, "vdisk_wait") + int(row, "vdisk_service");
        assert!(int(path, "latency") <= within, "{row} {path}");
        at += int(path, "bytes") / 512;
    }
    assert_eq!(
        at,
        int(row, "sector") + int(row, "sectors"),
        "{row} {paths:?}"
    );
}
