//! weir in guests with other kernels: for every device and operation its reports equal the counts
//! of that kernel, and selections, groups, histograms and recordings have the same numbers.
//!
//! A test needs neither root and BPF on the host nor its kernel: everything runs in emulation. One
//! boot serves all checks of a kernel. A device that a kernel does not have is logged as skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use serde_json::Value;
use weir_testing::kernel::{
    GuestKernel, LINUX_6_1, LINUX_6_1_FULL, LINUX_6_1_RT, LINUX_6_12, LINUX_6_12_FULL,
    LINUX_6_12_RT,
};
use weir_testing::{Counts, DiskLoad, Guest, GuestDisk, Scratch, Tools, is_full, skipped};

use crate::kit_of;

/// The time that a command in the guest may take, in emulation on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The size of each disk.
const DISK_BYTES: u64 = 64 << 20;

/// The name of the disk whose requests are counted in several ways.
const PLAIN: &str = "vda";

/// The disks that the self-test reads: 6.1 has no counters of an NVMe disk with two paths.
const DISKS_READ: &str = "--device /dev/vda --device /dev/vdb --device /dev/vdc --device /dev/sda";

/// The error of a sector that cannot be read: ENODATA.
const NO_DATA: &str = "61";

#[test]
fn linux_6_1_is_observed_as_it_counts() {
    observe(&LINUX_6_1, "linux_6_1_is_observed_as_it_counts");
}

#[test]
fn linux_6_12_is_observed_as_it_counts() {
    observe(&LINUX_6_12, "linux_6_12_is_observed_as_it_counts");
}

#[test]
fn linux_6_1_of_all_machines_is_observed_as_it_counts() {
    observe_if_full(&LINUX_6_1_FULL, "linux_6_1_of_all_machines");
}

#[test]
fn linux_6_12_of_all_machines_is_observed_as_it_counts() {
    observe_if_full(&LINUX_6_12_FULL, "linux_6_12_of_all_machines");
}

#[test]
fn linux_6_1_rt_is_observed_as_it_counts() {
    observe_if_full(&LINUX_6_1_RT, "linux_6_1_rt");
}

#[test]
fn linux_6_12_rt_is_observed_as_it_counts() {
    observe_if_full(&LINUX_6_12_RT, "linux_6_12_rt");
}

/// Runs the test of a kernel that only `cargo xtask test --kernels` and `--all` use.
fn observe_if_full(kernel: &GuestKernel, test: &str) {
    if is_full() {
        observe(kernel, test);
    }
}

fn observe(kernel: &GuestKernel, test: &str) {
    let Some((kit, _turn)) = kit_of(test, kernel) else {
        return;
    };
    let mut watched = Watched::start(&kit).unwrap();
    the_doctor_finds_all_in_order(&mut watched);
    let devices = watched.add_devices(test);
    watched.start_weir(
        "rows",
        "query --no-fold --stacked --format csv 'select type, pdisk, op, bytes, error from IOstream'",
    );
    let before = watched.guest.disk_stats().unwrap();
    let flushes = watched.load_with_each_scheduler(test);
    let multipath = watched.load_devices(&devices);
    let after = watched.guest.disk_stats().unwrap();
    let summary = watched.end("rows");
    let rows = Rows::parse(&watched.output("rows"));

    let of = |disk: &str| after[disk].since(before.get(disk).unwrap_or(&Counts::default()));
    let mut wrong = Vec::new();
    for (disk, counts) in &after {
        let own = of(disk);
        let is_part = watched.parts.contains(disk);
        // The disk with the programs is also read while weir is starting.
        let is_tools = disk == "vdb";
        if is_part || is_tools || multipath.contains(disk) || own.requests() == 0 {
            continue;
        }
        let parts: Vec<&str> = watched.parts.iter().map(String::as_str).collect();
        let parts = parts
            .into_iter()
            .filter(|part| part.starts_with(disk.as_str()));
        let names: Vec<&str> = parts.chain([disk.as_str()]).collect();
        let reported = |op: &str| rows.count(&names, "", op);
        let [reads, writes, zeroes] = ["r", "w", "z"].map(reported);
        // The kernel counts a flush without data and a write of zeroes as writes.
        let found = [reads, writes + zeroes + reported("f"), reported("d")];
        let expected = [own.reads, own.writes, own.discards];
        // The kernel counts I/O of an array after it was split at chunks and boundaries.
        if disk.starts_with("md") {
            assert!(
                reads > 0 && reads <= own.reads,
                "{disk}: {found:?} {counts:?}"
            );
            continue;
        }
        if found != expected {
            wrong.push(format!(
                "{disk}: {found:?} rows, {expected:?} requests: {own:?}"
            ));
        }
        let requests = ["r", "w"].map(|op| rows.requests(&names, op));
        if requests != [reads, writes] {
            wrong.push(format!(
                "{disk}: {requests:?} requests, {reads} r, {writes} w"
            ));
        }
    }
    assert!(wrong.is_empty(), "{test}: {}\n{summary}", wrong.join("\n"));
    assert_eq!(rows.count(&[PLAIN], "", "f"), flushes, "{test}\n{summary}");
    if devices.contains_key("scsi_debug") {
        let disk = devices["scsi_debug"].trim_start_matches("/dev/");
        assert_eq!(
            rows.count(&[disk], NO_DATA, "r"),
            1,
            "{test}: the medium error"
        );
        assert!(of(disk).discards > 0, "{test}: discards");
    }

    the_same_requests_are_counted_in_each_way(&mut watched);
    watched.run(&format!(
        "echo mq-deadline > /sys/block/{PLAIN}/queue/scheduler"
    ));
    the_doctor_finds_all_in_order(&mut watched);
}

/// A guest with the programs that the test needs, and the files of its disks.
struct Watched {
    guest: Guest,
    /// Partitions, whose requests are those of their disks.
    parts: BTreeSet<String>,
    _tools: Tools,
    /// Dropped last: it contains the files of the other fields.
    _folder: Scratch,
}

impl Watched {
    /// Boots it on two processors with virtio disks, a SCSI disk, an NVMe disk with a queue for
    /// each processor, and one with two controllers.
    fn start(kit: &weir_testing::Kit) -> anyhow::Result<Watched> {
        let folder = Scratch::new();
        let path = |name: &str| folder.file(name);
        for name in ["plain", "spare", "second", "queues", "shared"] {
            fs::File::create(path(name))?.set_len(DISK_BYTES)?;
        }
        let programs = [
            env!("CARGO_BIN_EXE_weir"),
            "dd",
            "dmsetup",
            "addpart",
            "mke2fs",
        ];
        let tools = Tools::make(&folder.path().join("tools"), &programs)?;
        let mut args = ["-m", "1024", "-smp", "2"].map(str::to_owned).to_vec();
        // The temporary directory may not support O_DIRECT.
        for name in ["plain", "tools", "spare"] {
            args.extend(GuestDisk::new(name, &path(name)).buffered().args());
        }
        args.extend(
            GuestDisk::new("second", &path("second"))
                .buffered()
                .scsi()
                .args(),
        );
        let node = |name: &str| format!("node-name={name},driver=file,filename={}", path(name));
        for words in [
            ["-blockdev", &node("queues")],
            ["-device", "nvme,drive=queues,serial=queues,max_ioqpairs=2"],
            ["-blockdev", &node("shared")],
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
        guest.run("mkdir -p /dev/mapper /mnt")?;
        // weir starts itself a second time, so the system must find its libraries.
        guest.run("mkdir -p /lib64 && ln -s /tools/lib/ld-linux-x86-64.so.2 /lib64/")?;
        guest.run("export LD_LIBRARY_PATH=/tools/lib")?;
        Ok(Watched {
            guest,
            parts: BTreeSet::new(),
            _tools: tools,
            _folder: folder,
        })
    }

    fn run(&mut self, line: &str) -> String {
        self.guest.begin(line).unwrap();
        let finished = self.guest.finish_within(TIMEOUT);
        finished.unwrap_or_else(|error| panic!("{line}: {error:#}"))
    }

    /// Starts weir in the background and waits until its programs are attached.
    fn start_weir(&mut self, name: &str, args: &str) {
        let links =
            format!("ls -l /proc/$(cat /tmp/{name}.pid)/fd 2> /dev/null | grep -c bpf_link");
        self.run(&format!(
            "/tools/bin/weir {args} > /tmp/{name} 2> /tmp/{name}.err & echo $! > /tmp/{name}.pid"
        ));
        self.run(&format!(
            "before=0; while now=$({links}); [ $now = 0 ] || [ $now != $before ]; do \
             [ -d /proc/$(cat /tmp/{name}.pid) ] || {{ cat /tmp/{name}.err; false; break; }}; \
             before=$now; sleep 1; done"
        ));
    }

    /// Ends what [`Watched::start_weir`] has started, and returns its messages.
    fn end(&mut self, name: &str) -> String {
        let pid = format!("$(cat /tmp/{name}.pid)");
        self.run(&format!(
            "kill -INT {pid}; while [ -d /proc/{pid} ]; do usleep 50000; done; true"
        ));
        self.run(&format!("cat /tmp/{name}.err"))
    }

    fn output(&mut self, name: &str) -> String {
        self.run(&format!("cat /tmp/{name}"))
    }

    fn load(&mut self, load: &DiskLoad) -> i64 {
        self.guest.load(std::slice::from_ref(load)).unwrap()[0].fsyncs
    }

    /// Loads a module; logs that the kernel has none.
    fn has_module(&mut self, test: &str, name: &str, options: &str) -> bool {
        let loaded = self.run(&format!(
            "load_module {name} {options} && echo loaded; true"
        ));
        if !loaded.contains("loaded") {
            skipped(test, format_args!("this kernel has no {name}"));
        }
        loaded.contains("loaded")
    }

    /// Creates a device of the device mapper, with a node since no udev creates links.
    fn map(&mut self, name: &str, table: &str) -> String {
        self.run(&format!(
            "/tools/dmsetup --noudevsync --noudevrules create {name} --table '{table}'"
        ));
        let number = format!("$(/tools/dmsetup info -c --noheadings -o minor {name} | tr -d ' ')");
        self.run(&format!(
            "[ -e /dev/mapper/{name} ] || mknod /dev/mapper/{name} b $(tr : ' ' < /sys/block/dm-{number}/dev)"
        ));
        format!("/dev/mapper/{name}")
    }

    /// Adds the devices that the kernel has modules for; returns their paths.
    fn add_devices(&mut self, test: &str) -> BTreeMap<&'static str, String> {
        let mut devices = BTreeMap::from([("virtio_scsi", "/dev/sda".to_owned())]);
        if self.has_module(test, "nvme", "") {
            self.run(
                "until [ $(ls /dev/nvme*n1 2> /dev/null | wc -l) -ge 2 ]; do usleep 100000; done",
            );
        }
        if self.has_module(test, "dm_mod", "") {
            devices.insert("linear", self.map("lin", "0 32768 linear /dev/sda 65536"));
        }
        // Its ciphers are looked up when it is used.
        if ["xts", "aesni_intel", "dm_crypt"]
            .iter()
            .all(|m| self.has_module(test, m, ""))
        {
            let key = "0123456789abcdef".repeat(4);
            let table = format!("0 16384 crypt aes-xts-plain64 {key} 0 /dev/sda 98304");
            devices.insert("crypt", self.map("crypt", &table));
        }
        if self.has_module(
            test,
            "null_blk",
            "nr_devices=3 queue_mode=2 submit_queues=2 gb=1",
        ) {
            devices.insert("null_blk", "/dev/nullb0".to_owned());
            if self.has_module(test, "raid1", "") {
                self.run(
                    "echo md_pair > /sys/module/md_mod/parameters/new_array; \
                     (set -ex; cd /sys/block/md_pair/md; echo none > metadata_version; echo raid1 > level; \
                     echo 2 > raid_disks; echo 16384 > component_size; cat /sys/block/nullb1/dev > new_dev; \
                     cat /sys/block/nullb2/dev > new_dev; echo 0 > dev-nullb1/slot; \
                     echo 1 > dev-nullb2/slot; \
                     echo active > array_state; \
                     until grep -q idle sync_action; do usleep 100000; done)",
                );
                devices.insert("raid1", "/dev/md_pair".to_owned());
            }
        }
        let options = "dev_size_mb=16 lbpu=1 opts=2";
        if self.has_module(test, "scsi_debug", options) {
            let find = "ls -d /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block/*";
            let found = format!("until {find} > /dev/null 2>&1; do usleep 100000; done; {find}");
            let found = self.run(&found);
            let name = found.trim().rsplit('/').next().unwrap().to_owned();
            devices.insert("scsi_debug", format!("/dev/{name}"));
        }
        if self.has_module(test, "lzo_rle", "") && self.has_module(test, "zram", "") {
            self.run("echo lzo-rle > /sys/block/zram0/comp_algorithm; echo 16M > /sys/block/zram0/disksize");
            devices.insert("zram", "/dev/zram0".to_owned());
        }
        self.run("/tools/addpart /dev/vdc 1 2048 49152");
        self.parts.insert("vdc1".to_owned());
        devices.insert("partition", "/dev/vdc1".to_owned());
        devices
    }

    /// Loads the plain disk with each scheduler, with flushes; returns their number.
    fn load_with_each_scheduler(&mut self, test: &str) -> i64 {
        let mut flushes = 0;
        for (number, scheduler) in ["none", "mq-deadline", "bfq", "kyber"]
            .into_iter()
            .enumerate()
        {
            let module = ["", "mq_deadline", "bfq", "kyber_iosched"][number];
            if !module.is_empty() && !self.has_module(test, module, "") {
                continue;
            }
            self.run(&format!(
                "echo {scheduler} > /sys/block/{PLAIN}/queue/scheduler"
            ));
            flushes += self.load(&DiskLoad {
                read: 60,
                write: 40,
                count: 200,
                fsync: 20,
                seed: 1 + number as u64,
                ..DiskLoad::on("/dev/vda")
            });
            // The kernel makes a write, a flush command and a flush of each of these.
            self.run(
                "/tools/dd if=/dev/zero of=/dev/vda bs=4096 count=20 oflag=direct,dsync 2> /dev/null",
            );
            flushes += 20;
        }
        self.run(&format!("echo none > /sys/block/{PLAIN}/queue/scheduler"));
        flushes
    }

    /// Loads each other device; returns the hidden paths of disks with several.
    fn load_devices(&mut self, devices: &BTreeMap<&str, String>) -> BTreeSet<String> {
        let mut paths: Vec<String> = devices.values().cloned().collect();
        let nvme = self.run("ls /dev/nvme*n1 2> /dev/null; true");
        paths.extend(nvme.split_whitespace().map(str::to_owned));
        for (number, path) in paths.iter().enumerate() {
            let load = format!("disk={path},count=120,read=60,write=40,span=8388608,seed={number}");
            // The interrupt of a disk with one queue comes to the first processor, wherever the
            // request is issued.
            self.run(&format!("taskset 2 load {load}"));
        }
        if let Some(disk) = devices.get("scsi_debug") {
            self.run(&format!("blkdiscard -o 1048576 -l 1048576 {disk}"));
            // This sector is defective (drivers/scsi/scsi_debug.c, OPT_MEDIUM_ERR_ADDR).
            self.run(&format!(
                "! /tools/dd if={disk} of=/dev/null bs=512 skip=4660 count=1 iflag=direct 2> /dev/null"
            ));
        }
        self.loop_on_file_system();
        let hidden = self.run("grep -l 1 /sys/block/*/hidden 2> /dev/null; true");
        let names = hidden.lines().filter_map(|line| line.split('/').nth(3));
        names.map(str::to_owned).collect()
    }

    /// Loads a loop device on a file of an ext4 on the partition.
    fn loop_on_file_system(&mut self) {
        let has_loop = self.run("load_module loop && echo loaded; true");
        if !has_loop.contains("loaded") {
            return;
        }
        self.run("/tools/mke2fs -q -F -t ext4 -E lazy_itable_init=0 /dev/vdc1");
        self.run("mount -t ext4 /dev/vdc1 /mnt && /tools/dd if=/dev/zero of=/mnt/file bs=1M count=8 2> /dev/null");
        self.run("sync; [ -e /dev/loop0 ] || mknod /dev/loop0 b 7 0; losetup /dev/loop0 /mnt/file");
        self.run("load disk=/dev/loop0,count=100,read=60,write=40,span=8388608,seed=77");
        self.run("losetup -d /dev/loop0; umount /mnt; sync");
    }
}

/// Rows that weir reported, by disk, type, operation and error.
struct Rows(BTreeMap<[String; 4], i64>);

impl Rows {
    fn parse(text: &str) -> Rows {
        let mut rows = BTreeMap::new();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split(',').collect();
            let [_, kind, pdisk, op, _, error] = words[..] else {
                panic!("{line}");
            };
            let disk = pdisk.trim_start_matches("/dev/");
            *rows
                .entry([disk, kind, op, error].map(str::to_owned))
                .or_default() += 1;
        }
        Rows(rows)
    }

    fn sum(&self, wanted: impl Fn(&[String; 4]) -> bool) -> i64 {
        self.0
            .iter()
            .filter(|(key, _)| wanted(key))
            .map(|(_, n)| n)
            .sum()
    }

    /// Finished requests of these disks, of all errors or of one.
    fn count(&self, disks: &[&str], error: &str, op: &str) -> i64 {
        self.sum(|[disk, kind, own, found]| {
            let is_wanted = error.is_empty() || found == error;
            disks.contains(&disk.as_str()) && kind != "Q" && own == op && is_wanted
        })
    }

    /// Requests of these disks.
    fn requests(&self, disks: &[&str], op: &str) -> i64 {
        self.sum(|[disk, kind, own, _]| disks.contains(&disk.as_str()) && kind == "Q" && own == op)
    }
}

/// A selection, groups of the kernel, histograms, a recording, and a query that names a disk by
/// another name, while one load runs.
fn the_same_requests_are_counted_in_each_way(watched: &mut Watched) {
    watched.run("mkdir -p /dev/disk/by-id; ln -s ../../vda /dev/disk/by-id/virtio-plain");
    let disk = "pdisk = '/dev/disk/by-id/virtio-plain'";
    let query = "query --format csv";
    for (name, args) in [
        (
            "large",
            format!("{query} \"select op, bytes from IO where bytes >= 65536 and {disk}\""),
        ),
        (
            "groups",
            format!(
                "{query} \"Rstream(select op, count(*) from IO [range 1 s slide 1 s] where {disk} group by op)\""
            ),
        ),
        (
            "hist",
            "hist --json --by device -i /dev/disk/by-id/virtio-plain".to_owned(),
        ),
        (
            "record",
            "record --device /dev/disk/by-id/virtio-plain -o /tmp/recording.parquet".to_owned(),
        ),
    ] {
        watched.start_weir(name, &args);
    }
    let before = watched.guest.disk_stats().unwrap()[PLAIN];
    for load in [
        "disk=/dev/vda,read=60,write=40,count=200,seed=5",
        "disk=/dev/vda,read=1,count=60,bytes=65536,seed=6",
    ] {
        watched.load(&load.parse().unwrap());
    }
    let counts = watched.guest.disk_stats().unwrap()[PLAIN].since(&before);
    assert_eq!(counts.requests(), 260, "{counts:?}");
    // The groups of a second are delivered after its end.
    watched.run("sleep 3");
    let messages = ["large", "groups", "hist", "record"].map(|name| watched.end(name));
    let large = watched.output("large");
    assert_eq!(large.lines().count(), 1 + 60, "{large}");

    let mut groups: BTreeMap<String, i64> = BTreeMap::new();
    for line in watched.output("groups").lines().skip(1) {
        let words: Vec<&str> = line.split(',').collect();
        let [_, op, count] = words[..] else {
            panic!("{line}");
        };
        *groups.entry(op.to_owned()).or_default() += count.parse::<i64>().unwrap();
    }
    let by_op = [("r", counts.reads), ("w", counts.writes)];
    let expected: BTreeMap<String, i64> = by_op.map(|(op, n)| (op.to_owned(), n)).into();
    assert_eq!(groups, expected);

    let found = watched.run("[ -e /tmp/recording.parquet ] || echo none");
    assert_eq!(found, "", "{messages:?}");
    let recorded = watched.run(
        "/tools/bin/weir query --from /tmp/recording.parquet --final --format csv \
         'select op, count(*) from IO group by op order by op'",
    );
    let recorded: Vec<&str> = recorded.lines().skip(1).collect();
    let lines = by_op.map(|(op, count)| format!("{op},{count}"));
    assert!(
        recorded
            .iter()
            .zip(&lines)
            .all(|(line, end)| line.ends_with(end.as_str())),
        "{recorded:?} {lines:?}"
    );

    let hist = watched.output("hist");
    let hist: Value = serde_json::from_str(hist.lines().next().expect("a disk")).unwrap();
    let count = &hist["histograms"]["ioLength"]["all"]["count"];
    assert_eq!(count, counts.requests(), "{hist}");
}

/// The self-test of `weir doctor` issues I/O and verifies that it is reported.
fn the_doctor_finds_all_in_order(watched: &mut Watched) {
    let page = watched.run(&format!("/tools/bin/weir doctor --json {DISKS_READ}"));
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["live"], true, "{page}");
    let facts = page["facts"].as_array().unwrap();
    for name in ["kernel enumerators", "kernel structures", "completeness"] {
        let fact = facts.iter().find(|f| f["name"] == name).expect("a fact");
        assert_eq!(fact["status"], "ok", "{fact}");
        let disks = ["/dev/vda", "/dev/vdb", "/dev/vdc", "/dev/sda"];
        let all = disks
            .iter()
            .all(|disk| fact["found"].as_str().unwrap().contains(disk));
        assert!(name != "completeness" || all, "{fact}");
    }
}
