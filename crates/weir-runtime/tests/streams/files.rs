//! Stream `FileIO` on ext4, xfs and btrfs: rows, bytes and offsets are compared with fio's reports
//! and with the counters of the device, and paths with the names that the files have.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value as Json;
use weir_model::Value;
use weir_tap::ebpf::streams::fileio;
use weir_testing::{LoopDisk, run};

use super::{Ran, ask, int, record_and_ask, turn};

/// Size of the devices in MiB; xfs needs 300.
const DEVICE_MIB: u64 = 320;

const PAGE: i64 = 4096;

const QUERY: &str = "select op, path, offset, bytes, flags, user_data, error, pdisk, inode, \
                     begin, ts, latency, level, pid from FileIO where fs in";

/// A row of [`QUERY`].
#[derive(Clone, Debug)]
struct Row {
    op: String,
    path: Option<String>,
    offset: Option<i64>,
    bytes: i64,
    flags: String,
    user_data: Option<i64>,
    pdisk: Option<String>,
    inode: Option<i64>,
}

impl Row {
    fn of(values: &[Value]) -> Row {
        let (text, number) = (|at| text_at(values, at), |at| number_at(values, at));
        assert_eq!(values[6], Value::Null, "no request failed: {values:?}");
        assert_eq!(int(&values[10]) - int(&values[9]), int(&values[11]));
        assert_eq!(values[12], Value::text("file"));
        assert!(int(&values[13]) > 0, "{values:?}");
        Row {
            op: text(0).expect("each row has an operation"),
            path: text(1),
            offset: number(2),
            bytes: int(&values[3]),
            flags: text(4).expect("each row has flags"),
            user_data: number(5),
            pdisk: text(7),
            inode: number(8),
        }
    }
}

/// The text of a column of a row; `None` is NULL.
pub(super) fn text_at(values: &[Value], at: usize) -> Option<String> {
    (values[at] != Value::Null).then(|| values[at].to_string())
}

/// The number of a column of a row; `None` is NULL.
pub(super) fn number_at(values: &[Value], at: usize) -> Option<i64> {
    (values[at] != Value::Null).then(|| int(&values[at]))
}

/// A request for a part of a file.
pub(super) trait FilePart: Debug {
    /// Its operation, and the path of the file.
    fn target(&self) -> (&str, Option<&str>);

    /// Its offset and size.
    fn extent(&self) -> (Option<i64>, i64);
}

impl FilePart for Row {
    fn target(&self) -> (&str, Option<&str>) {
        (&self.op, self.path.as_deref())
    }

    fn extent(&self) -> (Option<i64>, i64) {
        (self.offset, self.bytes)
    }
}

/// A file system for one test.
pub struct FileSystem {
    /// Its device.
    pub disk: LoopDisk,
    /// Where it is mounted.
    pub folder: PathBuf,
    kind: &'static str,
}

impl FileSystem {
    /// An empty one.
    pub fn new(kind: &'static str) -> FileSystem {
        let disk = LoopDisk::new(DEVICE_MIB).expect("a loop device");
        let folder = match kind {
            "ext4" => disk.file_system(),
            "xfs" => disk.xfs(),
            _ => disk.copy_on_write(),
        };
        let folder = folder.unwrap_or_else(|e| panic!("{kind}: {e:#}"));
        if kind == "btrfs" {
            // Direct writes of files with checksums are buffered.
            run("chattr", &["+C", text(&folder)]).expect("chattr");
        }
        FileSystem { disk, folder, kind }
    }

    /// Runs `work` and returns the rows of the file system.
    fn observe<T>(&self, work: impl FnOnce() -> T) -> (Ran, Vec<Row>, T) {
        let (ran, done) = ask(&format!("{QUERY} ('{}')", self.kind), work);
        assert_eq!(ran.total("events_lost"), 0, "{:?}", ran.counts);
        let rows = ran.rows.iter().map(|row| Row::of(row));
        let prefix = format!("{}/", text(&self.folder));
        let own = |row: &Row| {
            let path = row.path.as_ref();
            path.map_or_else(
                || row.pdisk.as_deref() == Some(self.disk.path()),
                |path| path.starts_with(&prefix),
            )
        };
        let rows = rows.filter(own).collect();
        (ran, rows, done)
    }

    /// Creates a file of `bytes` that is not in the page cache.
    pub fn file(&self, name: &str, bytes: usize) -> String {
        let path = self.folder.join(name);
        let mut file = File::create(&path).expect("a file");
        file.write_all(&vec![7; bytes]).expect("it is written");
        file.sync_all().expect("it is on the device");
        text(&path).to_owned()
    }

    /// Bytes read from the device.
    fn read_bytes(&self) -> i64 {
        let stat = fs::read_to_string(self.disk.sysfs().join("stat")).expect("a device has counts");
        let sectors = stat.split_whitespace().nth(2).and_then(|n| n.parse().ok());
        sectors.map(|sectors: i64| sectors * 512).expect("a number")
    }

    /// Runs fio in its folder: the report on each job.
    pub fn fio(&self, options: &str) -> Vec<Json> {
        let folder = format!("--directory={}", text(&self.folder));
        let mut args = vec!["--output-format=json", "--randrepeat=1", &folder];
        args.extend(options.split_whitespace());
        let output = Command::new("fio")
            .args(&args)
            .output()
            .expect("fio is installed");
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "fio {args:?}: {problem}");
        let report: Json = serde_json::from_slice(&output.stdout).expect("fio reports as JSON");
        report["jobs"].as_array().expect("it has jobs").clone()
    }
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

/// fio's count for a job.
pub(super) fn count(job: &Json, direction: &str, counter: &str) -> i64 {
    job[direction][counter].as_i64().expect("fio counts it")
}

/// The rows of an operation on a file.
pub(super) fn of<'a, R: FilePart>(rows: &'a [R], op: &str, name: &str) -> Vec<&'a R> {
    let end = format!("/{name}");
    let own = |row: &&R| {
        let (its, path) = row.target();
        its == op && path.is_some_and(|path| path.ends_with(&end))
    };
    rows.iter().filter(own).collect()
}

pub(super) fn bytes<R: FilePart>(rows: &[&R]) -> i64 {
    rows.iter().map(|row| row.extent().1).sum()
}

/// That the rows cover each byte of a file once, and of its last page.
#[track_caller]
pub(super) fn assert_covers<R: FilePart>(rows: &[&R], bytes: i64) {
    let part = |row: &&R| match row.extent() {
        (Some(offset), bytes) => (offset, bytes),
        (None, _) => panic!("a request with data has an offset: {row:?}"),
    };
    let mut parts: Vec<(i64, i64)> = rows.iter().map(part).collect();
    parts.sort_unstable();
    let end = parts.iter().fold(0, |end, (offset, bytes)| {
        assert_eq!(*offset, end, "{parts:?}");
        end + bytes
    });
    assert_eq!(end, (bytes + PAGE - 1) / PAGE * PAGE, "{parts:?}");
}

/// That the rows are fio's direct requests of `block` bytes each: all of a file, once.
#[track_caller]
fn assert_direct(rows: &[&Row], job: &Json, direction: &str, block: i64) {
    assert_eq!(
        rows.len() as i64,
        count(job, direction, "total_ios"),
        "{rows:?}"
    );
    assert_eq!(bytes(rows), count(job, direction, "io_bytes"));
    assert!(
        rows.iter()
            .all(|row| row.flags == "D" && row.bytes == block),
        "{rows:?}"
    );
    assert_covers(rows, rows.len() as i64 * block);
}

/// The loads of a file system.
fn loads(kind: &'static str) {
    let system = FileSystem::new(kind);
    let read = system.file("read", 1_228_800);
    let uneven = system.file("uneven", 200_000);
    let mapped = system.file("mapped", 204_800);
    // Its metadata is read now.
    for name in ["read", "uneven", "mapped"] {
        let job = format!("--name=first --filename={name} --rw=read --bs=4k");
        system.fio(&job);
    }
    let run_all = || {
        let before = system.read_bytes();
        let direct = system.fio("--name=psync --filename=read --direct=1 --rw=randread --bs=12k");
        let buffered =
            system.fio("--name=back --filename=uneven --rw=read --bs=10000 --invalidate=1");
        let faults =
            system.fio("--name=mmap --filename=mapped --ioengine=mmap --rw=randread --bs=4k");
        let read = system.read_bytes() - before;
        let aio = "--name=aio --ioengine=libaio --iodepth=8 --direct=1 --rw=randwrite --bs=4k \
                   --size=256k --numjobs=2";
        let aio = system.fio(aio);
        let uring = "--name=uring --ioengine=io_uring --iodepth=8 --direct=1 --rw=write --bs=64k \
                     --size=1m";
        let uring = system.fio(uring);
        let unaligned = "--name=unaligned --rw=write --bs=10000 --size=200000 --end_fsync=1";
        system.fio(unaligned);
        let syncs = system.fio("--name=syncs --rw=write --bs=8k --size=400k --fsync=5");
        let uring_syncs = "--name=uringsyncs --ioengine=io_uring --rw=write --bs=8k --size=80k \
                           --fsync=2";
        let uring_syncs = system.fio(uring_syncs);
        (
            direct,
            buffered,
            faults,
            read,
            aio,
            uring,
            [syncs, uring_syncs],
        )
    };
    let (ran, rows, done) = system.observe(run_all);
    let (direct, buffered, faults, device_read, aio, uring, syncs) = done;

    if kind == "btrfs" {
        // It reads into memory that is not present through the page cache.
        let direct = of(&rows, "r", "read");
        assert!(bytes(&direct) >= 1_228_800, "{direct:?}");
        assert!(direct.iter().any(|row| row.flags == "D"));
    } else {
        assert_direct(&of(&rows, "r", "read"), &direct[0], "read", 12_288);
        // Nothing else was read.
        let all = rows.iter().filter(|row| row.op == "r");
        assert_eq!(all.map(|row| row.bytes).sum::<i64>(), device_read);
    }
    assert_eq!(count(&buffered[0], "read", "io_bytes"), 200_000);
    let back = of(&rows, "r", "uneven");
    assert_covers(&back, 200_000);
    assert!(
        back.iter()
            .all(|row| row.flags == "A" || row.flags.is_empty()),
        "{back:?}"
    );
    assert_eq!(count(&faults[0], "read", "io_bytes"), 204_800);
    let faulted = of(&rows, "r", "mapped");
    assert_covers(&faulted, 204_800);
    assert!(
        faulted.iter().all(|row| row.flags.starts_with('M')),
        "{faulted:?}"
    );

    for (number, job) in aio.iter().enumerate() {
        assert_direct(
            &of(&rows, "w", &format!("aio.{number}.0")),
            job,
            "write",
            4096,
        );
    }
    let uring_rows = of(&rows, "w", "uring.0.0");
    assert_direct(&uring_rows, &uring[0], "write", 65_536);
    // fio numbers a request by one of its 8 buffers.
    let numbers: Option<BTreeSet<i64>> = uring_rows.iter().map(|row| row.user_data).collect();
    let numbers = numbers.expect("each request of io_uring has a number");
    assert!((1..=8).contains(&numbers.len()), "{numbers:?}");
    assert!(
        of(&rows, "w", "aio.0.0")
            .iter()
            .all(|row| row.user_data.is_none())
    );

    let unaligned = of(&rows, "w", "unaligned.0.0");
    assert_covers(&unaligned, 200_000);
    assert!(
        unaligned.iter().all(|row| row.flags.contains('W')),
        "{unaligned:?}"
    );
    // The end of an fsync that a worker of io_uring executes is seen on ext4 only.
    let uring_calls = count(&syncs[1][0], "sync", "total_ios");
    let unseen = if kind == "ext4" { 0 } else { uring_calls };
    assert_eq!(ran.total("unseen"), unseen, "{:?}", ran.counts);
    let calls = of(&rows, "f", "uringsyncs.0.0").len() as i64;
    assert_eq!(calls, uring_calls - unseen);
    let calls = of(&rows, "f", "syncs.0.0");
    assert_eq!(calls.len() as i64, count(&syncs[0][0], "sync", "total_ios"));
    assert!(
        calls
            .iter()
            .all(|row| row.offset.is_none() && row.bytes == 0)
    );
    // Those after the last fsync are written when the kernel wants.
    let written = of(&rows, "w", "syncs.0.0");
    assert_covers(&written, bytes(&written));
    assert!(bytes(&written) >= 360 << 10, "{written:?}");
    for path in [read, uneven, mapped] {
        assert!(
            rows.iter().any(|row| row.path.as_ref() == Some(&path)),
            "{path}"
        );
    }
    let data = rows.iter().filter(|row| "rwf".contains(&row.op));
    let nameless: Vec<&Row> = data.filter(|row| row.path.is_none()).collect();
    assert!(nameless.is_empty(), "{nameless:?}");
    assert!(
        rows.iter()
            .all(|row| row.inode.is_some() || "dz".contains(&row.op))
    );
    let device = Some(system.disk.path());
    let data = rows.iter().filter(|row| row.op != "f");
    assert!(data.clone().count() > 0 && data.into_iter().all(|row| row.pdisk.as_deref() == device));

    renames(&system);
}

/// A file has the name that it had when the request began.
fn renames(system: &FileSystem) {
    let path = |name: &str| system.folder.join(name);
    let (_, rows, ()) = system.observe(|| {
        fs::create_dir(path("d1")).expect("a directory");
        let mut file = File::create(path("d1/f")).expect("a file");
        let mut step = || {
            file.write_all(&[1; 5000]).expect("it is written");
            file.sync_all().expect("it is on the device");
        };
        step();
        fs::rename(path("d1/f"), path("d1/g")).expect("it is renamed");
        step();
        fs::rename(path("d1"), path("d2")).expect("its directory is renamed");
        step();
        fs::remove_file(path("d2/g")).expect("it is unlinked");
        step();
    });
    let expected = ["d1/f", "d1/g", "d2/g", "d2/g (deleted)"];
    let expected = expected.map(|name| text(&path(name)).to_owned());
    for op in ["w", "f"] {
        let own = rows.iter().filter(|row| row.op == op);
        let mut paths: Vec<String> = own.filter_map(|row| row.path.clone()).collect();
        paths.dedup();
        assert_eq!(paths, expected, "{op} on {}", system.kind);
    }
}

#[test]
fn requests_of_ext4_are_those_of_the_load() {
    if let Some(_turn) = turn("requests_of_ext4_are_those_of_the_load") {
        loads("ext4");
    }
}

#[test]
fn requests_of_xfs_are_those_of_the_load() {
    if let Some(_turn) = turn("requests_of_xfs_are_those_of_the_load") {
        loads("xfs");
    }
}

#[test]
fn requests_of_btrfs_are_those_of_the_load() {
    if let Some(_turn) = turn("requests_of_btrfs_are_those_of_the_load") {
        loads("btrfs");
    }
}

#[test]
fn paths_are_those_of_the_oldest_mount() {
    let Some(_turn) = turn("paths_are_those_of_the_oldest_mount") else {
        return;
    };
    let system = FileSystem::new("ext4");
    let own = LoopDisk::new(64).expect("a loop device");
    run("mkfs.ext4", &["-q", "-F", own.path()]).expect("a file system");
    let folder = own.image().parent().expect("it is in a folder");
    let private = folder.join("private");
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir(system.folder.join(name)).expect("a directory");
    }
    fs::create_dir(&private).expect("a directory");
    // A mount that only another namespace has, a file of this one, and a file below an overlay.
    let script = r#"set -e
        mount "$1" "$2"
        dd if=/dev/zero of="$2/p" bs=4k count=1 oflag=direct 2>&1
        dd if=/dev/zero of="$3/h" bs=4k count=1 oflag=direct 2>&1
        cd "$3"
        mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work merged
        dd if=/dev/zero of=merged/o bs=4k count=1 oflag=direct 2>&1"#;
    let (ran, ()) = ask(&format!("{QUERY} ('ext4') and op = 'w'"), || {
        let (private, host) = (text(&private), text(&system.folder));
        let args = ["-m", "sh", "-c", script, "sh", own.path(), private, host];
        run("unshare", &args).expect("the script runs");
    });
    let direct = ran
        .rows
        .iter()
        .map(|row| Row::of(row))
        .filter(|row| row.flags == "D");
    let paths: BTreeSet<String> = direct.filter_map(|row| row.path).collect();
    for path in [
        private.join("p"),
        system.folder.join("h"),
        system.folder.join("upper/o"),
    ] {
        assert!(paths.contains(text(&path)), "{}: {paths:?}", path.display());
    }
}

#[test]
fn groups_by_path_are_made_in_the_kernel() {
    let Some(_turn) = turn("groups_by_path_are_made_in_the_kernel") else {
        return;
    };
    let system = FileSystem::new("xfs");
    let query = "select path, op, count(*), sum(bytes) from FileIO [range 10 s slide 10 s] \
                 where fs = 'xfs' and op in ('r', 'w') group by path, op";
    for name in ["g.0.0", "g.1.0"] {
        system.file(name, 512 << 10);
    }
    let (ran, jobs) = ask(query, || {
        system.fio("--name=g --direct=1 --rw=randrw --bs=8k --size=512k --numjobs=2")
    });
    for (number, job) in jobs.iter().enumerate() {
        for (op, direction) in [("r", "read"), ("w", "write")] {
            let path = text(&system.folder.join(format!("g.{number}.0"))).to_owned();
            let key = [Value::text(&path), Value::text(op)];
            let own = ran.rows.iter().filter(|row| row[..2] == key);
            let total = own.fold((0, 0), |(ios, bytes), row| {
                (ios + int(&row[2]), bytes + int(&row[3]))
            });
            let expected = ["total_ios", "io_bytes"].map(|c| count(job, direction, c));
            assert_eq!([total.0, total.1], expected, "{path} {op}: {:?}", ran.rows);
        }
    }
    let explanation = ran.explanation();
    let groups = "kernel: groups by path, op each 10s";
    let groups_2 = "kernel: groups by op, path each 10s";
    assert!(
        explanation.contains(groups) || explanation.contains(groups_2),
        "{explanation}"
    );
    // No fsync is demanded.
    assert!(!explanation.contains("sys_exit"), "{explanation}");
}

#[test]
fn a_recording_has_the_same_rows() {
    let Some(_turn) = turn("a_recording_has_the_same_rows") else {
        return;
    };
    let system = FileSystem::new("ext4");
    let query = "select path, count(*), sum(bytes), min(begin), max(ts), max(flags) from FileIO \
                 where flags = 'D' and op = 'w' group by path";
    let (written, rows, jobs) = record_and_ask(&fileio::STREAM, query, || {
        system.fio("--name=kept --direct=1 --rw=write --bs=16k --size=256k")
    });
    let path = text(&system.folder.join("kept.0.0")).to_owned();
    let own = rows.iter().find(|row| row[0] == Value::text(&path));
    let own = own.unwrap_or_else(|| panic!("{path} is in {rows:?}"));
    let expected = ["total_ios", "io_bytes"].map(|c| count(&jobs[0], "write", c));
    assert_eq!([int(&own[1]), int(&own[2])], expected);
    assert!(written >= expected[0]);
}
