//! Columns `file` and `inode` of `IO` on ext4, xfs and btrfs: bytes for each file are compared with
//! fio's reports, all bytes with the counters of the device, and paths with the names of the files.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use weir_model::capabilities::recording;
use weir_model::{Demand, Predicate, Value};
use weir_runtime::run_loop::wall_clock;
use weir_tap::RECORDING;
use weir_tap::ebpf::LiveOptions;
use weir_testing::run;

use super::files::{FileSystem, count, number_at, text, text_at};
use super::{Ran, ask, int, open, record_tap_and_ask, turn};

const PAGE: i64 = 4096;

/// A request of the device.
#[derive(Clone, Debug)]
struct Request {
    op: String,
    file: Option<String>,
    inode: Option<i64>,
    bytes: i64,
    comm: String,
    ts: i64,
}

/// The requests of a device while `work` runs.
fn observe<T>(device: &str, work: impl FnOnce() -> T) -> (Ran, Vec<Request>, T) {
    let query = format!("select op, file, inode, bytes, comm, ts from IO where pdisk = '{device}'");
    let (ran, done) = ask(&query, work);
    assert_eq!(ran.total("events_lost"), 0, "{:?}", ran.counts);
    let rows = ran.rows.iter().map(|row| Request {
        op: row[0].to_string(),
        file: text_at(row, 1),
        inode: number_at(row, 2),
        bytes: int(&row[3]),
        comm: row[4].to_string(),
        ts: int(&row[5]),
    });
    let rows: Vec<Request> = rows.collect();
    for row in &rows {
        assert_eq!(row.file.is_some(), row.inode.is_some(), "{row:?}");
    }
    (ran, rows, done)
}

/// The bytes of an operation on a file of the system.
fn bytes_of(rows: &[Request], system: &FileSystem, op: &str, name: &str) -> i64 {
    let path = system.folder.join(name);
    let own = rows
        .iter()
        .filter(|row| row.op == op && row.file.as_deref() == Some(text(&path)));
    own.map(|row| row.bytes).sum()
}

/// Sectors read and written, as the kernel counts them.
fn device_bytes(system: &FileSystem) -> [i64; 2] {
    let stat = fs::read_to_string(system.disk.sysfs().join("stat")).expect("a device has counts");
    let numbers: Vec<i64> = stat.split_whitespace().flat_map(str::parse).collect();
    [numbers[2] * 512, numbers[6] * 512]
}

fn pages(bytes: i64) -> i64 {
    (bytes + PAGE - 1) / PAGE * PAGE
}

/// Writes a file without waiting for the device.
fn write(path: &Path, bytes: usize) {
    let mut file = File::create(path).expect("a file");
    file.write_all(&vec![3; bytes]).expect("it is written");
}

/// What fio reports, and the bytes that the device has counted meanwhile.
struct Done {
    direct: i64,
    aio: [i64; 2],
    uring: i64,
    device: [i64; 2],
    begin: i64,
    end: i64,
}

fn run_loads(system: &FileSystem) -> Done {
    let (begin, before) = (wall_clock(), device_bytes(system));
    let direct = system.fio("--name=psync --filename=read --direct=1 --rw=randread --bs=12k");
    system.fio("--name=back --filename=uneven --rw=read --bs=10000 --invalidate=1");
    system.fio("--name=mmap --filename=mapped --ioengine=mmap --rw=randread --bs=4k");
    let aio = system.fio(
        "--name=aio --ioengine=libaio --iodepth=8 --direct=1 --rw=randwrite --bs=4k --size=256k \
         --numjobs=2",
    );
    // The device splits these.
    let uring = system.fio(
        "--name=uring --ioengine=io_uring --iodepth=4 --direct=1 --rw=write --bs=4m --size=16m",
    );
    system.fio("--name=synced --rw=write --bs=10000 --size=200000 --end_fsync=1");
    let stores = "--name=stores --filename=stores --ioengine=mmap --rw=write --bs=4k --end_fsync=1";
    system.fio(stores);
    // A kernel thread writes it.
    write(&system.folder.join("lazy"), 300_000);
    run("sync", &["-f", text(&system.folder)]).expect("sync");
    let after = device_bytes(system);
    Done {
        direct: count(&direct[0], "read", "io_bytes"),
        aio: [0, 1].map(|job| count(&aio[job], "write", "io_bytes")),
        uring: count(&uring[0], "write", "io_bytes"),
        device: [0, 1].map(|way| after[way] - before[way]),
        begin,
        end: wall_clock(),
    }
}

fn loads(kind: &'static str) {
    let system = FileSystem::new(kind);
    system.file("read", 1_228_800);
    system.file("uneven", 200_000);
    system.file("mapped", 204_800);
    system.file("stores", 128 << 10);
    // Its metadata is read now, and what mkfs has left is written.
    for name in ["read", "uneven", "mapped"] {
        system.fio(&format!("--name=first --filename={name} --rw=read --bs=4k"));
    }
    run("sync", &["-f", text(&system.folder)]).expect("sync");
    let (ran, rows, done) = observe(system.disk.path(), || run_loads(&system));

    let of = |op: &str, name: &str| bytes_of(&rows, &system, op, name);
    if kind == "btrfs" {
        // It reads into memory that is not present through the page cache.
        assert!(of("r", "read") >= done.direct, "{rows:?}");
    } else {
        assert_eq!(of("r", "read"), done.direct);
    }
    assert_eq!(of("r", "uneven"), pages(200_000));
    assert_eq!(of("r", "mapped"), 204_800);
    for (number, bytes) in done.aio.into_iter().enumerate() {
        assert_eq!(of("w", &format!("aio.{number}.0")), bytes);
    }
    assert_eq!(of("w", "uring.0.0"), done.uring);
    assert_eq!(of("w", "synced.0.0"), pages(200_000));
    assert_eq!(of("w", "stores"), 128 << 10);
    assert_eq!(of("w", "lazy"), pages(300_000));
    let lazy = text(&system.folder.join("lazy")).to_owned();
    let is_lazy = |row: &&Request| row.file.as_ref() == Some(&lazy);
    assert!(
        rows.iter()
            .filter(is_lazy)
            .all(|row| row.comm.starts_with("kworker")),
        "the thread that writes back is a kernel thread: {rows:?}"
    );
    let inode = fs::metadata(&lazy).expect("it exists").ino();
    assert!(
        rows.iter()
            .filter(is_lazy)
            .all(|row| row.inode == Some(inode as i64))
    );

    // Every byte of the device is in a row, with a file or without.
    let counted = (done.begin..=done.end, ["r", "w"]);
    for (way, op) in counted.1.into_iter().enumerate() {
        let all = rows
            .iter()
            .filter(|row| row.op == op && counted.0.contains(&row.ts));
        assert_eq!(
            all.map(|row| row.bytes).sum::<i64>(),
            done.device[way],
            "{op} on {kind}"
        );
    }
    let nameless = rows.iter().filter(|row| row.file.is_none()).count() as i64;
    assert_eq!(ran.total("untied"), nameless, "{:?}", ran.counts);
    renames(&system);
    several_files(&system);
}

/// A file has the name that it had when the request was issued.
fn renames(system: &FileSystem) {
    let path = |name: &str| system.folder.join(name);
    let (_, rows, ()) = observe(system.disk.path(), || {
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
    let mut paths: Vec<&str> = rows.iter().filter_map(|row| row.file.as_deref()).collect();
    paths.dedup();
    let expected = ["d1/f", "d1/g", "d2/g", "d2/g (deleted)"].map(path);
    assert_eq!(paths, expected.each_ref().map(|path| text(path)));
}

/// A request that contains blocks of several files has none of them.
fn several_files(system: &FileSystem) {
    const FILES: usize = 64;
    let name = |i: usize| format!("small{i}");
    let (ran, rows, ()) = observe(system.disk.path(), || {
        for i in 0..FILES {
            write(&system.folder.join(name(i)), 4096);
        }
        run("sync", &["-f", text(&system.folder)]).expect("sync");
    });
    let found = (0..FILES).filter(|i| match bytes_of(&rows, system, "w", &name(*i)) {
        0 => false,
        bytes => {
            assert_eq!(bytes, PAGE, "{}: {rows:?}", name(*i));
            true
        }
    });
    let found = found.count();
    let merged = ran.counts.iter().find(|c| c.cause == Some("several_files"));
    assert_eq!(
        found < FILES,
        merged.is_some(),
        "{found} files: {:?}",
        ran.counts
    );
}

#[test]
fn bytes_of_files_on_ext4_are_those_of_the_load() {
    if let Some(_turn) = turn("bytes_of_files_on_ext4_are_those_of_the_load") {
        loads("ext4");
    }
}

#[test]
fn bytes_of_files_on_xfs_are_those_of_the_load() {
    if let Some(_turn) = turn("bytes_of_files_on_xfs_are_those_of_the_load") {
        loads("xfs");
    }
}

#[test]
fn bytes_of_files_on_btrfs_are_those_of_the_load() {
    if let Some(_turn) = turn("bytes_of_files_on_btrfs_are_those_of_the_load") {
        loads("btrfs");
    }
}

#[test]
fn the_image_of_a_loop_device_is_the_file_below_it() {
    let Some(_turn) = turn("the_image_of_a_loop_device_is_the_file_below_it") else {
        return;
    };
    let system = FileSystem::new("ext4");
    let image = system.file("image", 8 << 20);
    let script = r#"set -e
        loop=$(losetup --find --show --direct-io=on "$1")
        dd if=/dev/zero of="$loop" bs=64k count=16 oflag=direct 2>&1
        losetup --detach "$loop""#;
    let (_, rows, ()) = observe(system.disk.path(), || {
        run("sh", &["-c", script, "sh", &image]).expect("the script runs");
    });
    assert_eq!(bytes_of(&rows, &system, "w", "image"), 1 << 20, "{rows:?}");
}

#[test]
fn memory_of_a_mapped_file_is_not_the_file_of_a_direct_write() {
    let Some(_turn) = turn("memory_of_a_mapped_file_is_not_the_file_of_a_direct_write") else {
        return;
    };
    let system = FileSystem::new("ext4");
    system.file("source", 1 << 20);
    // fio takes its memory from a mapping of that file.
    let source = text(&system.folder.join("source")).to_owned();
    let (_, rows, jobs) = observe(system.disk.path(), || {
        let options = format!("--name=to --mem=mmapshared:{source} --direct=1 --rw=write --bs=64k");
        system.fio(&format!("{options} --size=1m"))
    });
    let written = count(&jobs[0], "write", "io_bytes");
    assert_eq!(bytes_of(&rows, &system, "w", "to.0.0"), written, "{rows:?}");
}

#[test]
fn a_recording_has_the_files() {
    let Some(_turn) = turn("a_recording_has_the_files") else {
        return;
    };
    let system = FileSystem::new("xfs");
    let demand = Demand {
        stream: RECORDING.into(),
        columns: (0..recording().schema.len()).collect(),
        predicate: Predicate::all(),
        fold: None,
    };
    let query = format!(
        "select file, count(*), sum(bytes) from IO where pdisk = '{}' group by file",
        system.disk.path()
    );
    let (_, rows, jobs) = record_tap_and_ask(&demand, recording(), &query, || {
        system.fio("--name=kept --direct=1 --rw=write --bs=16k --size=256k --numjobs=2")
    });
    for (number, job) in jobs.iter().enumerate() {
        let path = system.folder.join(format!("kept.{number}.0"));
        let own = rows.iter().find(|row| row[0] == Value::text(text(&path)));
        let own = own.unwrap_or_else(|| panic!("{} is in {rows:?}", path.display()));
        let expected = ["total_ios", "io_bytes"].map(|c| count(job, "write", c));
        assert_eq!([int(&own[1]), int(&own[2])], expected);
    }
}

#[test]
fn an_older_kernel_refuses_the_column_and_names_the_remedy() {
    let Some(_turn) = turn("an_older_kernel_refuses_the_column_and_names_the_remedy") else {
        return;
    };
    let older = LiveOptions {
        without: vec!["iomap_dio_rw_begin".into()],
        ..LiveOptions::default()
    };
    let demand = |stream: &str, columns: &[&str]| Demand {
        stream: stream.into(),
        columns: columns
            .iter()
            .map(|name| recording().schema.index(name))
            .collect(),
        predicate: Predicate::all(),
        fold: None,
    };
    for refused in [demand("IO", &["file"]), demand(RECORDING, &["ts", "inode"])] {
        let error = open(&[refused], &older).err().expect("the kernel lacks it");
        let error = error.to_string();
        assert!(
            error.contains("iomap_dio_rw_begin") && error.contains("kernel 6.6"),
            "{error}"
        );
    }
    let all: Vec<String> = recording()
        .schema
        .fields
        .iter()
        .map(|f| f.name.clone())
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert!(open(&[demand("IO", &all)], &older).is_ok());
    assert!(open(&[demand("IO", &["bytes"])], &older).is_ok());
}
