//! The values of `weir exporter` and `weir diskstats` for two guests with load equal the guests'
//! I/O.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use weir_testing::{DiskLoad, Guest, GuestDisk, LoopDisk, MemoryFolder, disk_stats, run};

use crate::kit;
use crate::places::planned;

/// The disks: VM, disk, and the name in `weir iostat`.
const DISKS: [(&str, &str, &str); 2] = [
    ("web", "/dev/vda", "web:vda"),
    ("mail", "/dev/sda", "mail:sda"),
];

/// Reads and writes of each disk.
type Totals = [(i64, i64); 2];

/// The time limit of each operation here.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The maximum number of requests of a load whose completion is not observed, on protected kernels.
const MISSED_MAX: i64 = 16;

#[test]
fn the_exporter_and_diskstats_report_the_io_of_the_guests() {
    let Some((kit, _turn)) = kit("the_exporter_and_diskstats_report_the_io_of_the_guests") else {
        return;
    };
    let folder = MemoryFolder::new(64).unwrap();
    let disk = LoopDisk::new(100).unwrap();
    let mounted = disk.file_system().unwrap();
    let (device, mounted) = (disk.path(), mounted.to_str().unwrap());
    let mut guests = Vec::new();
    for (vm, vdisk, _) in DISKS {
        let path = format!("{mounted}/{vm}.raw");
        fs::write(&path, vec![0x11; 16 << 20]).unwrap();
        let disk = GuestDisk::new("d0", &path);
        let disk = if vdisk.starts_with("/dev/s") {
            disk.scsi()
        } else {
            disk
        };
        guests.push(Guest::start(&kit, vm, &disk.args()).unwrap());
    }
    for guest in &mut guests {
        guest.ready().unwrap();
    }
    run("sync", &["-f", mounted]).unwrap();
    let (tree, port) = (folder.file("tree"), 20_000 + std::process::id() % 10_000);
    let address = format!("127.0.0.1:{port}");
    let _exporter = Weir::start(
        &folder,
        &["exporter", "--listen", &address, "--device", device],
    );
    let _diskstats = Weir::start(&folder, &["diskstats", &tree, "--device", device]);

    // Both are ready when they report both disks.
    let within = Instant::now() + TIMEOUT;
    let known = |totals: &Totals| {
        totals
            .iter()
            .all(|(reads, writes)| *reads > 0 && *writes > 0)
    };
    while !known(&metrics(&address)) || !known(&in_tree(&tree)) {
        assert!(Instant::now() < within, "{}", metrics_text(&address));
        work(
            &mut guests,
            &[load(1, "/dev/vda", 60), load(2, "/dev/sda", 60)],
        );
    }
    // All reports have arrived when the values no longer change.
    let before = (settled(|| metrics(&address)), settled(|| in_tree(&tree)));
    let loads = [load(3, "/dev/vda", 700), load(4, "/dev/sda", 500)];
    work(&mut guests, &loads);
    let after = (settled(|| metrics(&address)), settled(|| in_tree(&tree)));
    for (number, load) in loads.iter().enumerate() {
        let (reads, writes) = planned(load);
        let (reads, writes) = (reads.len() as i64, writes.len() as i64);
        for (what, before, after) in [
            ("exporter", before.0[number], after.0[number]),
            ("diskstats", before.1[number], after.1[number]),
        ] {
            let counted = (after.0 - before.0, after.1 - before.1);
            let missed = reads + writes - counted.0 - counted.1;
            let fits = counted.0 <= reads && counted.1 <= writes && missed <= MISSED_MAX;
            assert!(fits, "{what}: {counted:?} of {reads} and {writes}: {load}");
        }
    }
}

fn load(seed: u64, disk: &str, count: u64) -> DiskLoad {
    DiskLoad {
        read: 60,
        write: 40,
        depth: 2,
        count,
        seed,
        ..DiskLoad::on(disk)
    }
}

fn work(guests: &mut [Guest], loads: &[DiskLoad]) {
    for (guest, load) in guests.iter_mut().zip(loads) {
        guest.begin_load(std::slice::from_ref(load)).unwrap();
    }
    for (guest, load) in guests.iter_mut().zip(loads) {
        guest.finish_load(std::slice::from_ref(load)).unwrap();
    }
}

/// Waits until the totals have not changed for a while; returns them.
fn settled(totals: impl Fn() -> Totals) -> Totals {
    let within = Instant::now() + TIMEOUT;
    let mut last = totals();
    loop {
        thread::sleep(Duration::from_secs(2));
        let now = totals();
        if now == last {
            return now;
        }
        assert!(Instant::now() < within, "never at rest: {now:?}");
        last = now;
    }
}

/// The totals of `weir exporter`.
fn metrics(address: &str) -> Totals {
    let text = metrics_text(address);
    DISKS.map(|(vm, vdisk, _)| {
        let total = |op: &str| {
            let mut lines = text.lines().filter(|line| {
                let labels = [format!("vm=\"{vm}\""), format!("vdisk=\"{vdisk}\"")];
                line.starts_with("weir_io_operations_total{")
                    && labels.iter().all(|label| line.contains(label.as_str()))
                    && line.contains(&format!("op=\"{op}\""))
            });
            let value = lines.next().and_then(|line| line.rsplit(' ').next());
            value.map_or(0, |value| value.parse::<f64>().unwrap() as i64)
        };
        (total("read"), total("write"))
    })
}

/// The response, or an empty text while it does not listen yet.
fn metrics_text(address: &str) -> String {
    let mut text = String::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_to_string(&mut text).unwrap();
    }
    text
}

/// The totals in the tree that `weir diskstats` writes.
fn in_tree(tree: &str) -> Totals {
    let text = fs::read_to_string(format!("{tree}/diskstats")).unwrap_or_default();
    let all: BTreeMap<_, _> = disk_stats(&text);
    DISKS.map(|(.., name)| {
        let of = |counts: &weir_testing::Counts| (counts.reads, counts.writes);
        all.get(name).map_or((0, 0), of)
    })
}

/// A weir process in the background.
struct Weir(Child);

impl Weir {
    fn start(folder: &MemoryFolder, args: &[&str]) -> Weir {
        let log = fs::File::create(folder.file(&format!("{}.log", args[0]))).unwrap();
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        Weir(weir.stderr(log).spawn().unwrap())
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
