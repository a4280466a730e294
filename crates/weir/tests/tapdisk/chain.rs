//! Stream `IOpath` ties each request of a virtual disk to the requests of the host's devices, for
//! an image in a file and for one that is a device. The load is known exactly, without a guest.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;
use weir_testing::vhost::{ClientShape, LoggedRequest, VhostClient, VhostLoad};
use weir_testing::{LoopDisk, WriteLimit, skipped};

use crate::process::{Query, Scratch, TIMEOUT, Tapdisk, WEIR, ready};

const COLUMNS: &str = "op, vm, vdisk, vsector, bytes, user_data, pdisk, sector, path, offset, \
                       untied, request, part, parts, vdisk_wait, app_wait, file, block_wait, \
                       device, completion, latency";

const STAGES: [&str; 6] = [
    "vdisk_wait",
    "app_wait",
    "file",
    "block_wait",
    "device",
    "completion",
];

/// Mebibytes of each image.
const IMAGE_MIB: usize = 32;

/// A running query for the rows of some devices.
struct Paths {
    child: Child,
    rows: Receiver<Value>,
}

impl Paths {
    /// Starts it; requests after its return have rows. `read` makes a request of a device. `None`
    /// where the stream is not available.
    fn start(test: &str, devices: &[&str], mut read: impl FnMut()) -> Option<Paths> {
        let devices: Vec<String> = devices.iter().map(|d| format!("'{d}'")).collect();
        let query = format!(
            "select {COLUMNS} from IOpath where pdisk in ({})",
            devices.join(", ")
        );
        let mut child = Command::new(WEIR)
            .args(["query", "--format", "json", &query])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, rows) = channel();
        std::thread::spawn(move || {
            for line in lines {
                let _ = sender.send(serde_json::from_str(&line.unwrap()).unwrap());
            }
        });
        loop {
            read();
            if rows.recv_timeout(Duration::from_millis(100)).is_ok() {
                return Some(Paths { child, rows });
            }
            if child.try_wait().unwrap().is_some() {
                let output = child.wait_with_output().unwrap();
                skipped(test, String::from_utf8_lossy(&output.stderr).trim_end());
                return None;
            }
        }
    }

    /// The rows until those for which `is_last` is true; `None` if the kernel has skipped a program,
    /// since another task had begun it on that processor: then a row may lack what it would have
    /// found.
    fn until(self, mut is_last: impl FnMut(&Value) -> bool) -> Option<Vec<Value>> {
        let mut rows = Vec::new();
        loop {
            let row = self.rows.recv_timeout(TIMEOUT).expect("a last row");
            let last = is_last(&row);
            rows.push(row);
            if last {
                break;
            }
        }
        let kill = Command::new("kill")
            .args(["-s", "INT", &self.child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        let output = self.child.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        if printed.contains("lost (recursion)") {
            return None;
        }
        assert!(!printed.contains("lost"), "{printed}");
        rows.extend(self.rows.try_iter());
        Some(rows)
    }
}

/// Two disks of a VM in one process, whose images are a file and a device, and a disk whose
/// requests show that a query is attached.
struct Served {
    tapdisk: Tapdisk,
    sockets: [String; 3],
    file: String,
    disks: [LoopDisk; 2],
    _scratch: Scratch,
}

impl Served {
    /// `None` without the privileges; `limited` limits the writes of the process to the device of
    /// the file.
    fn start(test: &str, limited: Option<u32>) -> Option<(Served, Option<WriteLimit>)> {
        let new = || LoopDisk::new(3 * IMAGE_MIB as u64);
        let (Ok(below), Ok(device)) = (new(), new()) else {
            skipped(test, "no loop device can be made");
            return None;
        };
        let folder = below.file_system().unwrap();
        let scratch = Scratch::new();
        let images = ["web.raw", "first.raw"].map(|name| {
            let image = folder.join(name);
            // Blocks that were not written would be read without a request.
            std::fs::write(&image, vec![7; IMAGE_MIB << 20]).unwrap();
            image.to_str().unwrap().to_owned()
        });
        weir_testing::run("sync", &[]).unwrap();
        let sockets = ["vda", "vdb", "vdc"].map(|name| scratch.file(name));
        let of = [&images[0], device.path(), &images[1]];
        let names = ["vda", "vdb", "vdc"].iter().zip(of).zip(&sockets);
        let disks = names.map(|((name, image), socket)| {
            format!("image={image},socket={socket},vm=web,vdisk=/dev/{name},queues=2")
        });
        let limit = match limited {
            None => None,
            Some(iops) => match WriteLimit::new(&below, iops) {
                None => {
                    skipped(test, "no limits of blkio, cgroups v1");
                    return None;
                }
                limit => limit,
            },
        };
        let processes = limit.as_ref().map(WriteLimit::processes);
        let mut command = Command::new("sh");
        let script = r#"[ -z "$0" ] || echo $$ > "$0"; exec "$@""#;
        command.args([
            "-c",
            script,
            &processes.unwrap_or_default(),
            WEIR,
            "tapdisk",
        ]);
        disks.for_each(|disk| {
            command.args(["--disk", &disk]);
        });
        let served = Served {
            tapdisk: Tapdisk::run(command),
            sockets,
            file: images[0].clone(),
            disks: [below, device],
            _scratch: scratch,
        };
        Some((served, limit))
    }

    fn client(&self, disk: usize, shape: ClientShape) -> VhostClient {
        VhostClient::connect(Path::new(&self.sockets[disk]), shape).unwrap()
    }

    fn paths(&self, test: &str) -> Option<Paths> {
        let mut client = self.client(2, ClientShape::default());
        let devices = [self.disks[0].path(), self.disks[1].path()];
        Paths::start(test, &devices, move || {
            client.read(0, 4096).unwrap();
        })
    }
}

fn int(row: &Value, column: &str) -> i64 {
    row[column]
        .as_i64()
        .unwrap_or_else(|| panic!("{column}: {row}"))
}

/// The rows of each request of a virtual disk, by its number.
fn by_request<'a>(rows: &'a [Value], vdisk: &str) -> BTreeMap<i64, Vec<&'a Value>> {
    let mut requests: BTreeMap<i64, Vec<&Value>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row["vdisk"] == vdisk) {
        requests.entry(int(row, "user_data")).or_default().push(row);
    }
    requests
}

/// That the rows are those of a request: all of its sectors, once, and times without a gap.
#[track_caller]
fn assert_covers(request: &Value, rows: &[&Value]) {
    let mut parts: Vec<(i64, i64)> = rows
        .iter()
        .map(|row| (int(row, "vsector"), int(row, "bytes") / 512))
        .collect();
    parts.sort_unstable();
    let end = parts
        .iter()
        .fold(int(request, "sector"), |at, (sector, sectors)| {
            assert_eq!(at, *sector, "{request} {rows:?}");
            at + sectors
        });
    let whole = int(request, "sector") + int(request, "sectors");
    assert_eq!(end, whole, "{request} {rows:?}");
    for row in rows {
        assert_eq!(row["op"], request["op"], "{request} {row}");
        assert_eq!(row["vm"], "web", "{row}");
        let times = STAGES.iter().filter_map(|stage| row[*stage].as_i64());
        assert!(row["vdisk_wait"].is_i64(), "{row}");
        assert_eq!(times.sum::<i64>(), int(row, "latency"), "{row}");
        // The tapdisk has its own times: it received the request at the same time, and its end
        // after the device's.
        assert!(
            int(row, "latency") <= int(request, "latency"),
            "{request} {row}"
        );
    }
}

/// What a client asked: operation, first sector, sectors.
fn asked(log: &[Vec<LoggedRequest>]) -> Vec<(String, i64, i64)> {
    let all = log.iter().flatten().map(|logged| {
        let ask = logged.ask;
        let op = ask.kind.letter().unwrap().to_string();
        (op, ask.sector as i64, ask.bytes as i64 / 512)
    });
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

/// Repeats an observation that lacks events, as on a busy host.
#[track_caller]
fn observe(complete: impl Fn() -> bool) {
    assert!((0..5).any(|_| complete()), "each run has lost events");
}

const REPORTED: &str = "select vdisk, req_id, op, sector, sectors, latency from IO";

#[test]
fn each_request_of_a_virtual_disk_is_tied_to_those_of_the_devices() {
    const TEST: &str = "each_request_of_a_virtual_disk_is_tied_to_those_of_the_devices";
    let Some(_turn) = ready(TEST, &["mkfs.ext4"]) else {
        return;
    };
    observe(|| each_request_is_tied(TEST));
}

/// True if no event was lost, or the host cannot run the test.
fn each_request_is_tied(test: &str) -> bool {
    let Some((served, _)) = Served::start(test, None) else {
        return true;
    };
    let query = Query::start(&served.tapdisk, REPORTED);
    let Some(paths) = served.paths(test) else {
        return true;
    };
    let shape = ClientShape {
        queues: 2,
        depth: 16,
        bytes_max: 2 << 20,
        // Every second buffer is not aligned for direct I/O.
        skew_bytes: 512,
        ..ClientShape::default()
    };
    let load = VhostLoad {
        read: 50,
        write: 50,
        bytes_max: 2 << 20,
        requests: 60,
        ..VhostLoad::default()
    };
    // Neighbours in flight at the same time, which the block layer merges.
    let adjacent = VhostLoad {
        bytes_max: 4096,
        sequential: true,
        requests: 400,
        seed: 2,
        ..load.clone()
    };
    let loads = [0, 1].map(|disk| {
        let mut client = served.client(disk, shape);
        let own = |load: &VhostLoad| VhostLoad {
            seed: load.seed + 10 * disk as u64,
            ..load.clone()
        };
        let mut log = client.run(&own(&load), None).unwrap().log;
        log.extend(client.run(&own(&adjacent), None).unwrap().log);
        // The last request of the disk: no other has this length.
        client.read(0, 3 << 12).unwrap();
        log
    });
    let mut last = 0;
    let Some(rows) = paths.until(|row| {
        let is_last = row["op"] == "r" && row["bytes"] == 3 << 12 && row["vsector"] == 0;
        last += i32::from(is_last && row["vdisk"] != "/dev/vdc");
        last == 2
    }) else {
        return false;
    };
    let (reported, printed) = query.stop();
    assert!(!printed.contains("lost"), "{printed}");

    let (mut split, mut merged) = (0, 0);
    for (disk, log) in loads.iter().enumerate() {
        let name = ["/dev/vda", "/dev/vdb"][disk];
        let tied = by_request(&rows, name);
        let own = reported
            .iter()
            .filter(|r| r["vdisk"] == name && r["sectors"] != 24);
        let own: Vec<&Value> = own.collect();
        let mut all: Vec<_> = own
            .iter()
            .map(|r| {
                let op = r["op"].as_str().unwrap().to_owned();
                (op, int(r, "sector"), int(r, "sectors"))
            })
            .collect();
        all.sort();
        let mut plan = asked(log);
        plan.retain(|(_, _, sectors)| *sectors != 24);
        assert_eq!(all, plan);
        for request in &own {
            let rows = tied.get(&int(request, "req_id")).map_or(&[][..], |r| r);
            assert_covers(request, rows);
            split += i32::from(rows.len() > 1);
            merged += rows.iter().filter(|row| int(row, "parts") > 1).count();
            for row in rows {
                let at = int(row, "vsector");
                assert_eq!(row["pdisk"], served.disks[disk].path());
                match disk {
                    0 => {
                        assert_eq!(row["path"], *served.file, "{row}");
                        assert_eq!(int(row, "offset"), at * 512, "{row}");
                    }
                    _ => assert_eq!(int(row, "sector"), at, "{row}"),
                }
            }
        }
    }
    assert!(split > 0 && merged > 0, "{split} split, {merged} merged");
    // Nothing of the VM is without its request.
    let untied = rows
        .iter()
        .filter(|row| ["r", "w"].contains(&row["op"].as_str().unwrap()));
    for row in untied.filter(|row| row["vdisk"].is_null()) {
        assert_eq!(row["untied"], "metadata", "{row}");
    }
    served.tapdisk.stop();
    true
}

#[test]
fn the_levels_have_the_time_that_the_client_has_waited() {
    const TEST: &str = "the_levels_have_the_time_that_the_client_has_waited";
    let Some(_turn) = ready(TEST, &["mkfs.ext4"]) else {
        return;
    };
    observe(|| levels_have_the_time(TEST));
}

/// True if no event was lost, or the host cannot run the test.
fn levels_have_the_time(test: &str) -> bool {
    let Some((served, Some(_limit))) = Served::start(test, Some(25)) else {
        return true;
    };
    let Some(paths) = served.paths(test) else {
        return true;
    };
    let mut client = served.client(0, ClientShape::default());
    let load = VhostLoad {
        read: 0,
        write: 100,
        requests: 40,
        depth: 1,
        ..VhostLoad::default()
    };
    let log = client.run(&load, None).unwrap().log.concat();
    let mut count = 0;
    let Some(rows) = paths.until(|row| {
        count += usize::from(row["vdisk"] == "/dev/vda");
        count == log.len()
    }) else {
        // The limit is removed when no process is in its cgroup.
        served.tapdisk.stop();
        return false;
    };
    let tied = by_request(&rows, "/dev/vda");
    assert_eq!(tied.len(), log.len());
    // One request at a time: their numbers are in their order.
    let mut waited = (0, 0);
    for (logged, rows) in log.iter().zip(tied.values()) {
        let [row] = rows[..] else {
            panic!("{rows:?}");
        };
        assert_eq!(int(row, "vsector"), logged.ask.sector as i64);
        let felt = logged.done_ns - logged.made_ns;
        assert!(int(row, "latency") <= felt, "{logged:?} {row}");
        waited = (waited.0 + felt, waited.1 + int(row, "latency"));
    }
    let (felt, seen) = waited;
    assert!(
        felt - seen < felt / 20,
        "{felt} ns, {seen} ns at the levels"
    );
    served.tapdisk.stop();
    true
}

/// The sums of the levels of a virtual disk, and its table with the most time, from `weir path`
/// while `work` runs, until `requests` rows are in the tables.
fn tables_of(device: &str, requests: i64, work: impl FnOnce()) -> (BTreeMap<String, i64>, Value) {
    let mut child = Command::new(WEIR)
        .args(["path", "--json", "-i", device, "100ms"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("a table per interval").unwrap();
        serde_json::from_str(&line).unwrap()
    };
    // Everything after the first table is observed.
    next();
    work();
    let (mut sums, mut most) = (BTreeMap::new(), Value::Null);
    let mut count = 0;
    while count < requests {
        let table = next();
        let disks = table["disks"].as_array().unwrap();
        for disk in disks.iter().filter(|disk| disk["vdisk"] == "/dev/vda") {
            let total = |disk: &Value| disk["levels"]["total"]["sum"].as_i64();
            count += disk["levels"]["total"]["requests"].as_i64().unwrap();
            for stage in STAGES {
                let sum = disk["levels"][stage]["sum"].as_i64().unwrap();
                *sums.entry(stage.to_owned()).or_default() += sum;
            }
            if total(disk) > total(&most) {
                most = disk.clone();
            }
        }
    }
    let kill = Command::new("kill")
        .args(["-s", "INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let _ = child.wait();
    (sums, most)
}

/// The tapdisk executes a request for misaligned memory in parts of 256 KiB, one after the other:
/// most of them wait in the tapdisk when the device is slow.
#[test]
fn a_delay_in_the_tapdisk_is_at_its_level() {
    const TEST: &str = "a_delay_in_the_tapdisk_is_at_its_level";
    let Some(_turn) = ready(TEST, &["mkfs.ext4"]) else {
        return;
    };
    let Some((served, Some(_limit))) = Served::start(TEST, Some(25)) else {
        return;
    };
    if served.paths(TEST).is_none() {
        return;
    }
    let shape = ClientShape {
        bytes_max: 2 << 20,
        skew_bytes: 256,
        ..ClientShape::default()
    };
    let load = VhostLoad {
        read: 0,
        write: 100,
        bytes_min: 2 << 20,
        bytes_max: 2 << 20,
        requests: 4,
        depth: 1,
        ..VhostLoad::default()
    };
    let mut client = served.client(0, shape);
    let (sums, most) = tables_of(served.disks[0].path(), 16, || {
        client.run(&load, None).unwrap();
    });
    let slowest = sums.iter().max_by_key(|(_, sum)| **sum).unwrap();
    assert_eq!(slowest.0, "vdisk_wait", "{sums:?}");
    assert_eq!(most["dominant"]["level"], "vdisk_wait", "{most}");
    served.tapdisk.stop();
}
