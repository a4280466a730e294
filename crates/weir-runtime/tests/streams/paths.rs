//! Stream `IOpath` on ext4, xfs and btrfs: block requests are compared with the counters of the
//! device, their files with fio's reports, and the times at each level with those of the
//! application.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;

use serde_json::Value as Json;
use weir_model::Value;
use weir_tap::ebpf::streams::iopath;
use weir_testing::{WriteLimit, run, skipped};

use super::files::{
    FilePart, FileSystem, assert_covers, bytes, count, number_at, of, text, text_at,
};
use super::{Ran, ask, int, record_and_ask, turn};

const COLUMNS: &str = "op, pdisk, path, offset, bytes, flags, untied, request, parent, part, \
                       parts, submit, latency, app_wait, file, block_wait, device, completion, ts, \
                       user_data, comm, sector, fs";

/// A row of [`COLUMNS`].
#[derive(Clone, Debug)]
struct Row {
    op: String,
    path: Option<String>,
    offset: Option<i64>,
    bytes: i64,
    flags: String,
    untied: Option<String>,
    request: i64,
    parent: Option<i64>,
    part: i64,
    parts: i64,
    latency: i64,
    /// `app_wait`, `file`, `block_wait`, `device`, `completion`.
    stages: [Option<i64>; 5],
    user_data: Option<i64>,
    comm: Option<String>,
}

impl Row {
    fn of(values: &[Value]) -> Row {
        let (text, number) = (|at| text_at(values, at), |at| number_at(values, at));
        let row = Row {
            op: text(0).expect("each row has an operation"),
            path: text(2),
            offset: number(3),
            bytes: int(&values[4]),
            flags: text(5).expect("each row has flags"),
            untied: text(6),
            request: int(&values[7]),
            parent: number(8),
            part: int(&values[9]),
            parts: int(&values[10]),
            latency: int(&values[12]),
            stages: [13, 14, 15, 16, 17].map(number),
            user_data: number(19),
            comm: text(20),
        };
        assert_eq!(int(&values[18]) - int(&values[11]), row.latency);
        // The times at the levels leave no gap.
        assert_eq!(
            row.stages.iter().flatten().sum::<i64>(),
            row.latency,
            "{row:?}"
        );
        row
    }
}

impl FilePart for Row {
    fn target(&self) -> (&str, Option<&str>) {
        (&self.op, self.path.as_deref())
    }

    fn extent(&self) -> (Option<i64>, i64) {
        (self.offset, self.bytes)
    }
}

/// Requests and sectors of reads and of writes, as the device counts them.
fn counts_of(system: &FileSystem) -> [i64; 4] {
    let stat = fs::read_to_string(system.disk.sysfs().join("stat")).expect("a device has counts");
    let fields: Vec<i64> = stat
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    [fields[0], fields[2], fields[4], fields[6]]
}

/// What a device counted at least and at most: the file system may write its log while the query
/// begins or ends.
type Counted = [RangeInclusive<i64>; 4];

/// Runs `work`, and writes everything: the rows of the device, and what it counted meanwhile.
fn observe<T>(system: &FileSystem, work: impl FnOnce() -> T) -> (Ran, Vec<Row>, Counted, T) {
    let sync = || run("sync", &["-f", text(&system.folder)]).expect("sync");
    sync();
    let before = counts_of(system);
    let (ran, (first, last, done)) = ask(&format!("select {COLUMNS} from IOpath"), || {
        let first = counts_of(system);
        let done = work();
        sync();
        (first, counts_of(system), done)
    });
    let after = counts_of(system);
    let counted = std::array::from_fn(|i| last[i] - first[i]..=after[i] - before[i]);
    assert_eq!(ran.total("events_lost"), 0, "{:?}", ran.counts);
    let device = Value::text(system.disk.path());
    let own = ran.rows.iter().filter(|row| row[1] == device);
    let rows = own.map(|row| Row::of(row)).collect();
    (ran, rows, counted, done)
}

/// That these are fio's direct requests, each with the times of all levels.
#[track_caller]
fn assert_direct(rows: &[&Row], job: &Json, direction: &str) {
    assert_covers(rows, count(job, direction, "io_bytes"));
    let parents: BTreeSet<i64> = rows.iter().filter_map(|row| row.parent).collect();
    assert_eq!(parents.len() as i64, count(job, direction, "total_ios"));
    for row in rows {
        assert_eq!(row.flags, "D", "{row:?}");
        assert!(row.stages.iter().all(Option::is_some), "{row:?}");
        assert_eq!(row.comm.as_deref(), Some("fio"), "{row:?}");
    }
}

/// That the rows are the device's requests: their number, and all of their sectors.
#[track_caller]
fn assert_counts(rows: &[Row], counted: &Counted) {
    let of = |op: &str| {
        let own = rows.iter().filter(|row| row.op == op);
        let requests: BTreeSet<i64> = own.clone().map(|row| row.request).collect();
        let first = own.clone().filter(|row| row.part == 0).count();
        assert_eq!(requests.len(), first);
        (requests.len() as i64, bytes(&own.collect::<Vec<_>>()) >> 9)
    };
    let (reads, writes, flushes) = (of("r"), of("w"), of("f"));
    // The device counts flushes as writes.
    let all = [reads.0, reads.1, writes.0 + flushes.0, writes.1];
    for (number, counted) in all.iter().zip(counted) {
        assert!(counted.contains(number), "{all:?} {counted:?} {flushes:?}");
    }
    let mut parts: BTreeMap<i64, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        parts.entry(row.request).or_default().push(row);
    }
    for request in parts.values() {
        let count = request.len() as i64;
        assert!(request.iter().all(|row| row.parts == count), "{request:?}");
    }
}

/// That no data are without their file.
#[track_caller]
fn assert_tied(rows: &[Row]) {
    let known = |row: &&Row| !matches!(row.untied.as_deref(), Some("metadata" | "no_data"));
    let data: Vec<&Row> = rows.iter().filter(known).collect();
    let untied: Vec<&&Row> = data.iter().filter(|row| row.untied.is_some()).collect();
    assert!(untied.len() * 1000 <= data.len(), "{untied:?}");
    let tied = data.iter().filter(|row| row.untied.is_none());
    assert!(
        tied.clone()
            .all(|row| row.path.is_some() && row.offset.is_some()),
        "{data:?}"
    );
}

/// The loads of a file system.
fn loads(kind: &'static str) {
    let system = FileSystem::new(kind);
    system.file("read", 1_228_800);
    system.file("uneven", 204_800);
    system.file("mapped", 204_800);
    for name in ["read", "uneven", "mapped"] {
        system.fio(&format!(
            "--name=first --filename={name} --rw=read --bs=4k --invalidate=1"
        ));
    }
    let (_, rows, counted, done) = observe(&system, || {
        let direct = system.fio("--name=psync --filename=read --direct=1 --rw=randread --bs=12k");
        system.fio("--name=back --filename=uneven --rw=read --bs=10000 --invalidate=1");
        system.fio(
            "--name=mmap --filename=mapped --ioengine=mmap --rw=randread --bs=4k --invalidate=1",
        );
        let aio = "--name=aio --ioengine=libaio --iodepth=8 --iodepth_batch=4 --direct=1 \
                   --rw=randwrite --bs=4k --size=256k";
        let aio = system.fio(aio);
        let uring = "--name=uring --ioengine=io_uring --iodepth=8 --direct=1 --rw=write --bs=64k \
                     --size=1m";
        let uring = system.fio(uring);
        // Larger than a request of the device.
        let large = system.fio("--name=large --direct=1 --rw=write --bs=4m --size=8m");
        system.fio("--name=dirty --rw=write --bs=8k --size=409600");
        (direct, aio, uring, large)
    });
    let (direct, aio, uring, large) = done;

    assert_counts(&rows, &counted);
    assert_tied(&rows);
    let read = of(&rows, "r", "read");
    if kind == "btrfs" {
        // It reads into memory that is not present through the page cache.
        assert!(bytes(&read) >= 1_228_800, "{read:?}");
    } else {
        assert_direct(&read, &direct[0], "read");
        // Less than fio measured, since it measures outside of the kernel, and most of that.
        let felt = direct[0]["read"]["lat_ns"]["mean"]
            .as_f64()
            .expect("fio measures");
        let felt = felt * read.len() as f64;
        let spent: i64 = read.iter().map(|row| row.latency).sum();
        assert!(spent as f64 <= felt, "{spent} ns of {felt}");
        assert!(spent as f64 >= felt / 2.0, "{spent} ns of {felt}");
    }
    assert_covers(&of(&rows, "r", "uneven"), 204_800);
    let mapped = of(&rows, "r", "mapped");
    assert_covers(&mapped, 204_800);
    assert!(
        mapped.iter().all(|row| row.flags.contains('M')),
        "{mapped:?}"
    );
    // A fault is its own beginning.
    assert!(
        mapped.iter().any(|row| row.stages[1] > Some(0)),
        "{mapped:?}"
    );
    assert_direct(&of(&rows, "w", "aio.0.0"), &aio[0], "write");
    let uring_rows = of(&rows, "w", "uring.0.0");
    assert_direct(&uring_rows, &uring[0], "write");
    assert!(
        uring_rows.iter().all(|row| row.user_data.is_some()),
        "{uring_rows:?}"
    );
    let large_rows = of(&rows, "w", "large.0.0");
    assert_direct(&large_rows, &large[0], "write");
    let requests: BTreeSet<i64> = large_rows.iter().map(|row| row.request).collect();
    assert!(requests.len() > 2, "{large_rows:?}");
    // The file that was dirtied, whatever task writes it.
    let dirty = of(&rows, "w", "dirty.0.0");
    assert_covers(&dirty, 409_600);
    assert!(
        dirty
            .iter()
            .all(|row| row.flags.contains('W') && row.comm.as_deref() != Some("fio")),
        "{dirty:?}"
    );
}

#[test]
fn paths_of_ext4_are_those_of_the_load() {
    if let Some(_turn) = turn("paths_of_ext4_are_those_of_the_load") {
        loads("ext4");
    }
}

#[test]
fn paths_of_xfs_are_those_of_the_load() {
    if let Some(_turn) = turn("paths_of_xfs_are_those_of_the_load") {
        loads("xfs");
    }
}

#[test]
fn paths_of_btrfs_are_those_of_the_load() {
    if let Some(_turn) = turn("paths_of_btrfs_are_those_of_the_load") {
        loads("btrfs");
    }
}

/// Writes per second in the limited cgroup.
const LIMIT_IOPS: u32 = 20;

#[test]
fn the_wait_for_a_limit_is_in_the_block_layer() {
    let test = "the_wait_for_a_limit_is_in_the_block_layer";
    let Some(_turn) = turn(test) else {
        return;
    };
    let system = FileSystem::new("ext4");
    let Some(limited) = WriteLimit::new(&system.disk, LIMIT_IOPS) else {
        skipped(test, "no limits of blkio, cgroups v1");
        return;
    };
    let path = system.file("limited", 6 << 14);
    let (_, rows, ..) = observe(&system, || {
        let script = r#"echo $$ > "$1"
            exec dd if=/dev/zero of="$2" bs=16k count=6 oflag=direct conv=notrunc"#;
        run("sh", &["-c", script, "sh", &limited.processes(), &path]).expect("dd writes");
    });
    let written = of(&rows, "w", "limited");
    assert_covers(&written, 6 << 14);
    let waited = |stage: usize| -> i64 { written.iter().filter_map(|row| row.stages[stage]).sum() };
    let total: i64 = written.iter().map(|row| row.latency).sum();
    // The first may pass at once, the others wait for their turn.
    assert!(
        total >= 4 * 1_000_000_000 / i64::from(LIMIT_IOPS),
        "{written:?}"
    );
    assert!(waited(2) * 2 > total, "{written:?}");
}

#[test]
fn a_recording_has_the_same_paths() {
    let Some(_turn) = turn("a_recording_has_the_same_paths") else {
        return;
    };
    let system = FileSystem::new("ext4");
    let query = "select path, count(*), sum(bytes), sum(latency), sum(device) from IOpath \
                 where flags = 'D' and op = 'w' group by path";
    let (written, rows, jobs) = record_and_ask(&iopath::STREAM, query, || {
        system.fio("--name=kept --direct=1 --rw=write --bs=16k --size=256k")
    });
    let path = text(&system.folder.join("kept.0.0")).to_owned();
    let own = rows.iter().find(|row| row[0] == Value::text(&path));
    let own = own.unwrap_or_else(|| panic!("{path} is in {rows:?}"));
    let expected = ["total_ios", "io_bytes"].map(|c| count(&jobs[0], "write", c));
    assert_eq!([int(&own[1]), int(&own[2])], expected);
    assert!(int(&own[3]) >= int(&own[4]) && written >= expected[0]);
}
