//! weir in guests with other kernels: for every device and operation its reports equal the counts
//! of that kernel, and selections, groups, histograms and recordings have the same numbers.
//!
//! A test needs neither root and BPF on the host nor its kernel: everything runs in emulation. One
//! boot serves all checks of a kernel. A device that a kernel does not have is logged as skipped.

mod arm64;
mod boot;
mod devices;
mod files;
mod level;
mod limits;
mod rows;

use std::collections::BTreeMap;

use serde_json::Value;
use weir_testing::kernel::{
    GuestKernel, LINUX_6_1, LINUX_6_1_FULL, LINUX_6_1_RT, LINUX_6_12, LINUX_6_12_FULL,
    LINUX_6_12_RT, LINUX_BACKPORTS, LINUX_TESTING, LINUX_TRIXIE,
};
use weir_testing::{Counts, DiskLoad, is_full};

use self::boot::{AT_START, Watched};
use self::devices::{BIOS, COUNTED_BIOS, HEAD, PAGES, SPLIT};
use self::rows::Rows;
use crate::kit_of;

/// The name of the disk whose requests are counted in several ways.
const PLAIN: &str = "vda";

/// The disks that the self-test reads, one with a scheduler and three without. 6.1 has no counters
/// of an NVMe disk with two paths.
const DISKS_READ: [&str; 4] = ["/dev/vda", "/dev/vdb", "/dev/vdc", "/dev/sda"];

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

#[test]
fn linux_of_trixie_is_observed_as_it_counts() {
    observe_if_full(&LINUX_TRIXIE, "linux_of_trixie");
}

#[test]
fn linux_of_testing_is_observed_as_it_counts() {
    observe_if_full(&LINUX_TESTING, "linux_of_testing");
}

#[test]
fn linux_of_backports_is_observed_as_it_counts() {
    observe_if_full(&LINUX_BACKPORTS, "linux_of_backports");
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
    let mut watched = Watched::start(&kit, test).unwrap();
    watched.add_devices();
    watched.start_weir(&[("rows", rows::QUERY), ("hist", "hist --json --by device")]);
    let before = watched.disk_stats();
    let flushes = load_with_each_scheduler(&mut watched);
    let submitter = watched.load_from_another_processor();
    watched.load_devices();
    let after = watched.disk_stats();
    let summary = watched.end("rows");
    let of_histograms = watched.end("hist");
    let rows = Rows::parse(&watched.run(&Rows::command("/tmp/rows")));

    let counts = |disk: &str| after[disk].since(before.get(disk).unwrap_or(&Counts::default()));
    // The disk with the programs is also read while weir is starting.
    let disks = after
        .keys()
        .filter(|disk| *disk != "vdb" && !watched.is_part(disk));
    let wrong = disks.filter_map(|disk| difference(&watched, &rows, disk, counts(disk)));
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{test}: {}\n{summary}", wrong.join("\n"));
    assert_eq!(rows.finished(&[PLAIN], "f"), flushes, "{test}\n{summary}");
    if let Some(disk) = watched.path_of("scsi_debug") {
        let errors = rows.failed(&disk, NO_DATA);
        assert_eq!(errors, 1, "{test}: the medium error");
        assert!(counts(&disk).discards > 0, "{test}: discards");
    }
    if let Some(disk) = watched.path_of("dm linear") {
        let flushes = rows.finished(&[&disk], "f");
        assert_eq!(
            flushes, watched.loads[&disk].fsyncs,
            "{test}: flushes of {disk}"
        );
    }
    for kind in COUNTED_BIOS.into_iter().chain([PAGES]) {
        let Some(disk) = watched.path_of(kind) else {
            continue;
        };
        let own = counts(&disk);
        // Reads through the page cache without a bio are the only ones that weir misses.
        let is_blind = kind == PAGES && rows.finished(&[&disk], "r") == 0;
        let unseen = if is_blind { own.read_sectors } else { 0 };
        let seen = own.read_sectors + own.write_sectors - unseen;
        let found = rows::sectors(&summary, &disk);
        assert_eq!(
            found,
            Some([seen, unseen]),
            "{test}: {kind}: {own:?}\n{summary}"
        );
        let reported = format!("at least {unseen} sectors on /dev/{disk}: no event was received");
        assert_eq!(
            of_histograms.contains(&reported),
            is_blind,
            "{test}: {kind}: {own:?}\n{of_histograms}"
        );
    }
    // A response has the processor of its request, wherever it arrived.
    for is_request in [true, false] {
        assert_eq!(
            rows.at_start(is_request),
            BTreeMap::from([(submitter, AT_START)])
        );
    }

    let pages_are_reported = watched
        .path_of(PAGES)
        .is_none_or(|disk| rows.finished(&[&disk], "r") > 0);

    files::the_file_is_found_below(&mut watched);
    files::a_delay_is_at_its_level(&mut watched);
    the_same_requests_are_counted_in_each_way(&mut watched);
    the_kernel_makes_groups_by_owner(&mut watched);
    watched.run(&format!(
        "echo mq-deadline > /sys/block/{PLAIN}/queue/scheduler"
    ));
    the_doctor_finds_all_in_order(&mut watched, &DISKS_READ, pages_are_reported);
}

/// What differs between the rows of a disk, with those of its partitions, and the kernel's counts.
fn difference(watched: &Watched, rows: &Rows, disk: &str, own: Counts) -> Option<String> {
    let is = |kind: &str| watched.path_of(kind).as_deref() == Some(disk);
    let names = watched.with_parts(disk);
    let [reads, writes, zeroes, flushes, discards] =
        ["r", "w", "z", "f", "d"].map(|op| rows.finished(&names, op));
    let requests = ["r", "w"].map(|op| rows.requests(&names, op));
    // The kernel counts a write of zeroes as a write, and a flush without data except on an array.
    let is_array = disk.starts_with("md_");
    let mut found = [reads, writes + zeroes, discards];
    found[1] += if is_array { 0 } else { flushes };
    let mut expected = [own.reads, own.writes, own.discards];
    if is(BIOS) || is(HEAD) {
        // The kernel counts nothing, or flushes as reads.
        let done = &watched.loads[disk];
        expected = [done.reads, done.writes, 0];
    }
    if is(SPLIT) {
        // The kernel counts the parts.
        let done = &watched.loads[disk];
        expected = [done.reads, done.writes + done.fsyncs, 0];
    }
    if is(PAGES) && reads == 0 && own.reads > 0 {
        // `weir doctor` must report it.
        expected[0] = 0;
    }
    if is(HEAD) && own.requests() == 0 {
        // Such a kernel reports no response of this disk either, only of the paths below it.
        expected = [0; 3];
    }
    let submitted = match is(HEAD) {
        true => [watched.loads[disk].reads, watched.loads[disk].writes],
        false => [reads, writes],
    };
    (found != expected || requests != submitted).then(|| {
        format!("{disk}: {found:?} finished, not {expected:?}; {requests:?} submitted; {own:?}")
    })
}

/// Loads the plain disk with each scheduler, with flushes; returns their number.
fn load_with_each_scheduler(watched: &mut Watched) -> i64 {
    let mut flushes = 0;
    for (seed, (scheduler, module)) in [
        ("none", None),
        ("mq-deadline", Some("mq_deadline")),
        ("bfq", Some("bfq")),
        ("kyber", Some("kyber_iosched")),
    ]
    .into_iter()
    .enumerate()
    {
        if module.is_some_and(|module| !watched.has_module(module)) {
            continue;
        }
        watched.run(&format!(
            "echo {scheduler} > /sys/block/{PLAIN}/queue/scheduler"
        ));
        let done = watched.load(&DiskLoad {
            read: 60,
            write: 40,
            count: 200,
            fsync: 20,
            seed: 1 + seed as u64,
            ..DiskLoad::on("/dev/vda")
        });
        // The kernel makes a write, a flush command and a flush of each of these.
        watched.run(
            "/tools/dd if=/dev/zero of=/dev/vda bs=4096 count=20 oflag=direct,dsync 2> /dev/null",
        );
        flushes += done.fsyncs + 20;
    }
    watched.run(&format!("echo none > /sys/block/{PLAIN}/queue/scheduler"));
    flushes
}

/// Aggregates of each kind that the programs keep, of every column.
const OTHERS: &str = "max(in_flight), sum(seek), quantile(seek, 0.5), quantile(in_flight, 0.9), \
    max(interarrival), quantile(interarrival, 0.5), \
    count(*) filter (where seek = 1), sum(merges), sum(sectors), avg(bytes), \
    quantile(latency, 0.99), quantile(wait, 0.99), max(service)";

/// A selection, groups of the kernel, histograms, a recording, and a query that names a disk by
/// another name, while one load runs.
fn the_same_requests_are_counted_in_each_way(watched: &mut Watched) {
    watched.run("mkdir -p /dev/disk/by-id; ln -s ../../vda /dev/disk/by-id/virtio-plain");
    let disk = "pdisk = '/dev/disk/by-id/virtio-plain'";
    let query = "query --format csv";
    watched.start_weir(&[
        (
            "large",
            &format!("{query} \"select op, bytes from IO where bytes >= 65536 and {disk}\""),
        ),
        (
            "groups",
            &format!(
                "{query} -v \"Rstream(select op, count(*), count(in_flight), count(seek), count(interarrival), {OTHERS} from IO [range 1 s slide 1 s] where {disk} group by op)\""
            ),
        ),
        (
            "hist",
            "hist --json --by device -i /dev/disk/by-id/virtio-plain",
        ),
        (
            "record",
            "record --device /dev/disk/by-id/virtio-plain -o /tmp/recording.parquet",
        ),
    ]);
    let before = watched.disk_stats()[PLAIN];
    for load in [
        "disk=/dev/vda,read=60,write=40,count=200,seed=5",
        "disk=/dev/vda,read=1,count=60,bytes=65536,seed=6",
    ] {
        watched.load(&load.parse().unwrap());
    }
    let counts = watched.disk_stats()[PLAIN].since(&before);
    assert_eq!(counts.requests(), 260, "{counts:?}");
    // The groups of a second are delivered after its end.
    watched.run("sleep 3");
    let messages = ["large", "groups", "hist", "record"].map(|name| watched.end(name));
    let large = watched.output("large");
    assert_eq!(large.lines().count(), 1 + 60, "{large}");

    let mut groups: BTreeMap<String, i64> = BTreeMap::new();
    let mut related = [0; 3];
    for line in watched.output("groups").lines().skip(1) {
        let words: Vec<&str> = line.split(',').collect();
        let [_, op, count, in_flight, seek, interarrival, ..] = words[..] else {
            panic!("{line}");
        };
        let counts = [count, in_flight, seek, interarrival].map(|n| n.parse::<i64>().unwrap());
        let [count, in_flight, seek, interarrival] = counts;
        *groups.entry(op.to_owned()).or_default() += count;
        related = [
            related[0] + in_flight,
            related[1] + seek,
            related[2] + interarrival,
        ];
    }
    let by_op = [("r", counts.reads), ("w", counts.writes)];
    let expected: BTreeMap<String, i64> = by_op.map(|(op, n)| (op.to_owned(), n)).into();
    assert_eq!(groups, expected);
    // The first request has none before it.
    let after = counts.requests() - 1;
    assert_eq!(related, [counts.requests(), after, after]);
    let [_, messages_of_groups, ..] = &messages;
    assert!(
        messages_of_groups.contains("requests folded"),
        "{messages:?}"
    );

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

/// Groups by VM and virtual disk, of a load that lasts until its process is known.
fn the_kernel_makes_groups_by_owner(watched: &mut Watched) {
    watched.start_weir(&[(
        "owners",
        &format!(
            "query --format csv -v \"Rstream(select vm, vdisk, op, count(*), {OTHERS} from IO [range 1 s slide 1 s] where pdisk = '/dev/vda' group by vm, vdisk, op)\""
        ),
    )]);
    watched.load(&"disk=/dev/vda,read=1,count=10000,seed=7".parse().unwrap());
    // The groups of a second are delivered after its end.
    watched.run("sleep 3");
    let messages = watched.end("owners");
    assert!(messages.contains("requests folded"), "{messages:?}");
    let lines = watched.output("owners");
    let counts = lines.lines().skip(1).map(|line| line.split(',').nth(4));
    let counts = counts.map(|count| count.and_then(|n| n.parse::<i64>().ok()));
    assert_eq!(counts.sum::<Option<i64>>(), Some(10_000), "{lines}");
}

/// The self-test of `weir doctor` reads these disks and verifies that it is reported. It reports
/// whether reads through the page cache are observed.
fn the_doctor_finds_all_in_order(watched: &mut Watched, disks: &[&str], pages_are_reported: bool) {
    let devices = disks.iter().map(|disk| format!("--device {disk}"));
    let mut devices: Vec<String> = devices.collect();
    let pages = watched.path_of(PAGES);
    devices.extend(pages.as_ref().map(|disk| format!("--device /dev/{disk}")));
    let page = watched.run(&format!(
        "/tools/bin/weir doctor --json {}",
        devices.join(" ")
    ));
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["live"], true, "{page}");
    let facts = page["facts"].as_array().unwrap();
    let fact = |name: &str| facts.iter().find(|f| f["name"] == name).expect("a fact");
    for name in ["kernel enumerators", "kernel structures", "completeness"] {
        assert_eq!(fact(name)["status"], "ok", "{}", fact(name));
    }
    let found = fact("completeness")["found"].as_str().unwrap();
    let all = disks.iter().all(|disk| found.contains(disk));
    assert!(all, "{found}");
    if pages.is_some() {
        let fact = fact("disks without requests");
        assert_eq!(fact["status"] == "ok", pages_are_reported, "{fact}");
        let is_named = fact
            .to_string()
            .contains("through the page cache are not observed");
        assert_ne!(is_named, pages_are_reported, "{fact}");
    }
}
