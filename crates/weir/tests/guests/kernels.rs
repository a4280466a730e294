//! weir in a guest with another kernel, that of Debian 13: its reports equal the counts of that
//! kernel, with every I/O scheduler, on an NVMe disk with two paths, and for any name of a device.
//!
//! The test needs neither root and BPF on the host nor its kernel: everything runs in emulation.
//! One boot serves all checks.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;
use weir_testing::kernel::LINUX_6_12;
use weir_testing::{Counts, DiskLoad, Guest, GuestDisk, Scratch, Tools};

use crate::kit_of;

/// The time that a command in the guest may take, in emulation on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(240);

/// The size of each disk.
const DISK_BYTES: u64 = 64 << 20;

/// Rows that weir reported, by disk, type and operation.
type Rows = BTreeMap<(String, String, String), i64>;

/// A guest with the programs that the test needs, and the files of its disks.
struct Watched {
    guest: Guest,
    _tools: Tools,
    /// Dropped last: it contains the files of the other fields.
    _folder: Scratch,
}

impl Watched {
    /// Boots it with a virtio disk, a disk that contains programs, and an NVMe disk with two
    /// controllers.
    fn start(kit: &weir_testing::Kit) -> anyhow::Result<Watched> {
        let folder = Scratch::new();
        let path = |name: &str| folder.file(name);
        for name in ["plain", "shared"] {
            fs::File::create(path(name))?.set_len(DISK_BYTES)?;
        }
        let programs = [env!("CARGO_BIN_EXE_weir"), "dd", "dmsetup"];
        let tools = Tools::make(&folder.path().join("tools"), &programs)?;
        let mut args = ["-m", "768"].map(str::to_owned).to_vec();
        // The temporary directory may not support O_DIRECT.
        args.extend(GuestDisk::new("plain", &path("plain")).buffered().args());
        args.extend(GuestDisk::new("tools", &path("tools")).buffered().args());
        let shared = path("shared");
        for words in [
            [
                "-blockdev",
                &format!("node-name=shared,driver=file,filename={shared}"),
            ],
            ["-device", "nvme-subsys,id=subsystem,nqn=weir"],
            ["-device", "nvme,id=c0,serial=shared,subsys=subsystem"],
            ["-device", "nvme,id=c1,serial=shared,subsys=subsystem"],
            ["-device", "nvme-ns,drive=shared,bus=c0,nsid=1,shared=on"],
        ] {
            args.extend(words.map(str::to_owned));
        }
        let mut guest = Guest::start(kit, "kernels", &args)?;
        guest.ready()?;
        guest.run(&Tools::mount("/dev/vdb"))?;
        Ok(Watched {
            guest,
            _tools: tools,
            _folder: folder,
        })
    }

    fn run(&mut self, line: &str) -> String {
        self.guest.begin(line).unwrap();
        self.guest.finish_within(TIMEOUT).unwrap()
    }

    /// Starts a query that writes a row for each event into a file `/tmp/NAME`, in the background.
    fn query(&mut self, name: &str, text: &str) {
        let query = format!("/tools/weir query --no-fold --format csv \"{text}\"");
        self.run(&format!(
            "{query} > /tmp/{name} 2> /tmp/{name}.err & echo $! > /tmp/{name}.pid"
        ));
    }

    /// Reads from a disk until a query has reported one of the reads. They have 512 bytes, as no
    /// other requests have.
    fn until_attached(&mut self, name: &str, disk: &str) {
        let is_there = format!("grep -q ',512$' /tmp/{name}");
        let runs = format!("[ -d /proc/$(cat /tmp/{name}.pid) ]");
        let read = format!("/tools/dd if={disk} of=/dev/null bs=512 count=1 iflag=direct");
        self.run(&format!(
            "until {is_there}; do {runs} || break; {read} 2> /dev/null; usleep 200000; done; \
             {is_there} || {{ cat /tmp/{name}.err; false; }}"
        ));
    }

    /// Ends a query; returns the rows that it reported, without those reads, and its summary.
    fn end(&mut self, name: &str) -> (Rows, String) {
        let pid = format!("$(cat /tmp/{name}.pid)");
        self.run(&format!(
            "kill -INT {pid}; while [ -d /proc/{pid} ]; do usleep 50000; done; true"
        ));
        let text = self.run(&format!("cat /tmp/{name}"));
        let mut rows = Rows::new();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split(',').collect();
            let [_, kind, pdisk, op, bytes] = words[..] else {
                panic!("{line}");
            };
            if bytes != "512" {
                let key = [pdisk, kind, op].map(str::to_owned);
                let [pdisk, kind, op] = key;
                *rows.entry((pdisk, kind, op)).or_default() += 1;
            }
        }
        (rows, self.run(&format!("cat /tmp/{name}.err")))
    }
}

/// The rows reported for a disk: requests and responses of reads, writes and flushes.
fn reported(rows: &Rows, pdisk: &str) -> [i64; 6] {
    let kinds = ["Q", "R"].map(|kind| {
        let of = |op: &str| {
            let key = (pdisk.to_owned(), kind.to_owned(), op.to_owned());
            rows.get(&key).copied().unwrap_or(0)
        };
        ["r", "w", "f"].map(of)
    });
    let [[a, b, c], [d, e, f]] = kinds;
    [a, b, c, d, e, f]
}

/// The same from the kernel's counters, where a flush without data is a write without sectors.
fn counted(counts: &Counts, flushes: i64) -> [i64; 6] {
    let all = [counts.reads, counts.writes - flushes, flushes];
    let [r, w, f] = all;
    [r, w, f, r, w, f]
}

#[test]
fn a_kernel_of_debian_13_is_watched_as_it_counts() {
    const TEST: &str = "a_kernel_of_debian_13_is_watched_as_it_counts";
    let Some((kit, _turn)) = kit_of(TEST, &LINUX_6_12) else {
        return;
    };
    let mut watched = Watched::start(&kit).unwrap();
    the_doctor_finds_all_in_order(&mut watched, "none");
    watched.query("rows", "select type, pdisk, op, bytes from IOstream");
    watched.until_attached("rows", "/dev/vda");
    let head = watched.run("ls /dev/nvme*n1").trim().to_owned();
    let before = watched.guest.disk_stats().unwrap();
    let mut flushes = 0;
    for (number, scheduler) in ["none", "mq-deadline", "bfq", "kyber"]
        .into_iter()
        .enumerate()
    {
        watched.run(&format!(
            "echo {scheduler} > /sys/block/vda/queue/scheduler"
        ));
        let load = DiskLoad {
            read: 60,
            write: 40,
            count: 200,
            fsync: 20,
            seed: 1 + number as u64,
            ..DiskLoad::on("/dev/vda")
        };
        let done = watched
            .guest
            .load(std::slice::from_ref(&load))
            .unwrap()
            .remove(0);
        // The kernel makes a write, a flush command and a flush of each of these.
        watched.run(
            "/tools/dd if=/dev/zero of=/dev/vda bs=4096 count=20 oflag=direct,dsync 2> /dev/null",
        );
        flushes += done.fsyncs + 20;
    }
    watched.run(&format!(
        "echo none > /sys/block/vda/queue/scheduler; load disk={head},count=300,read=60,write=40"
    ));
    let after = watched.guest.disk_stats().unwrap();
    let (rows, stderr) = watched.end("rows");
    let plain = after["vda"].since(&before["vda"]);
    let without_data = plain.writes - plain.write_sectors / 8;
    assert_eq!(without_data, flushes, "each flush by itself: {plain:?}");
    assert_eq!(
        reported(&rows, "/dev/vda"),
        counted(&plain, flushes),
        "{stderr}"
    );
    assert!(plain.reads > 400 && plain.writes > 300, "{plain:?}");

    // The disk with two paths is one disk. A request through a path is the same request a second
    // time.
    let shared =
        after[head.trim_start_matches("/dev/")].since(&before[head.trim_start_matches("/dev/")]);
    assert_eq!(shared.reads + shared.writes, 300);
    assert_eq!(reported(&rows, &head), counted(&shared, 0), "{stderr}");
    let others: Vec<_> = rows
        .keys()
        .filter(|(pdisk, ..)| !["/dev/vda", "/dev/vdb", &head].contains(&&**pdisk))
        .collect();
    assert!(others.is_empty(), "{others:?}");

    any_name_of_a_device_selects_it(&mut watched);
    watched.run("echo mq-deadline > /sys/block/vda/queue/scheduler");
    the_doctor_finds_all_in_order(&mut watched, "mq-deadline");
}

/// The self-test of `weir doctor` issues I/O and verifies that it is reported.
fn the_doctor_finds_all_in_order(watched: &mut Watched, scheduler: &str) {
    let page = watched.run("/tools/weir doctor --json");
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["live"], true, "{scheduler}: {page}");
    let facts = page["facts"].as_array().unwrap();
    for name in ["kernel enumerators", "completeness"] {
        let fact = facts.iter().find(|f| f["name"] == name).expect("a fact");
        assert_eq!(fact["status"], "ok", "{scheduler}: {fact}");
        let disks = ["/dev/vda", "/dev/vdb", "/dev/nvme"];
        let all = disks
            .iter()
            .all(|disk| fact["found"].as_str().unwrap().contains(disk));
        assert!(name != "completeness" || all, "{scheduler}: {fact}");
    }
}

/// A device-mapper name is a device node here, since no udev creates links.
fn any_name_of_a_device_selects_it(watched: &mut Watched) {
    let udev = "--noudevsync --noudevrules";
    let table = "0 65536 linear /dev/vda 0";
    watched.run(&format!(
        "/tools/dmsetup {udev} create lin --table '{table}'"
    ));
    watched.run(
        "mkdir -p /dev/mapper; [ -e /dev/mapper/lin ] || \
         mknod /dev/mapper/lin b $(tr : ' ' < /sys/block/dm-0/dev)",
    );
    assert!(
        watched.run("ls -l /dev/mapper/lin").starts_with('b'),
        "a node"
    );
    watched.query(
        "mapped",
        "select type, pdisk, op, bytes from IOstream where pdisk = '/dev/mapper/lin'",
    );
    watched.until_attached("mapped", "/dev/mapper/lin");
    let load: DiskLoad = "disk=/dev/mapper/lin,count=100".parse().unwrap();
    watched.guest.load(std::slice::from_ref(&load)).unwrap();
    let (rows, stderr) = watched.end("mapped");
    assert_eq!(
        reported(&rows, "/dev/dm-0"),
        [100, 0, 0, 100, 0, 0],
        "{stderr}"
    );
    assert_eq!(rows.len(), 2, "{rows:?}");
    watched.run(&format!("/tools/dmsetup {udev} remove lin"));
}
