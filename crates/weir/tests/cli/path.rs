//! `weir path`: tables of a recording with known times, and delays planted at a known level.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value as Json, json};
use weir_model::{Batch, Column, Schema, Value};
use weir_tap::ebpf::streams::iopath;
use weir_tap::format::recording::RecordingWriter;
use weir_tap::format::{Header, TraceWriter};
use weir_testing::{LoopDisk, SlowDisk, WriteLimit, wait_until};

use crate::live::loop_disk;
use crate::support::{Scratch, interrupt, run, skipped, weir};

/// The columns of the recordings, which are those that the command reads.
const COLUMNS: [&str; 20] = [
    "ts",
    "vm",
    "vdisk",
    "pdisk",
    "untied",
    "latency",
    "vdisk_wait",
    "app_wait",
    "file",
    "block_wait",
    "device",
    "completion",
    "op",
    "bytes",
    "path",
    "offset",
    "flags",
    "pid",
    "comm",
    "user_data",
];

/// 2023-11-14 22:13:20.
const START: i64 = 1_700_000_000_000_000_000;

const MS: i64 = 1_000_000;

/// A row 100 ms after the previous one, with these times in microseconds.
fn row(number: i64, vm: Option<&str>, pdisk: &str, levels_us: [Option<i64>; 6]) -> Vec<Value> {
    let text = |text: Option<&str>| text.map_or(Value::Null, Value::text);
    let number_of = |n: Option<i64>| n.map_or(Value::Null, Value::Int);
    let times = levels_us.map(|us| number_of(us.map(|us| 1_000 * us)));
    let latency: i64 = levels_us.into_iter().flatten().sum();
    let is_tied = levels_us[2].is_some();
    let mut row = vec![
        Value::Int(START + 100 * MS * number),
        text(vm),
        text(vm.map(|_| "/dev/vda")),
        Value::text(pdisk),
        text((!is_tied).then_some("metadata")),
        Value::Int(1_000 * latency),
    ];
    row.extend(times);
    row.extend([
        Value::text("w"),
        Value::Int(4096),
        text(is_tied.then_some("/srv/a\u{1b}b")),
        number_of(is_tied.then_some(8192)),
        Value::text("D"),
        Value::Int(77),
        Value::text("fio"),
        number_of(is_tied.then_some(5)),
    ]);
    row
}

/// A recording of ten requests in two seconds.
fn recorded(path: &Path) {
    let mut stream = iopath::STREAM.declaration();
    let field = |name: &&str| {
        let (at, _) = stream.schema.find(name).expect("a column of the stream");
        stream.schema.fields[at].clone()
    };
    let fields: Vec<_> = COLUMNS.iter().map(field).collect();
    let types: Vec<_> = fields.iter().map(|field| field.ty).collect();
    stream.schema = Schema::new(fields).into();
    let mut rows: Vec<Vec<Value>> = (0..8)
        .map(|i| {
            let levels = [5, 0, 10, 20, 60 + 10 * i, 10].map(Some);
            row(i, Some("web"), "/dev/sda", levels)
        })
        .collect();
    let untied = [None, None, None, Some(900), Some(100), None];
    rows.push(row(8, None, "/dev/sda", untied));
    let direct = [None, Some(0), Some(0), Some(0), Some(5), Some(0)];
    rows.push(row(15, None, "/dev/sdb", direct));
    let ts: Vec<i64> = (0..rows.len())
        .map(|i| match rows[i][0] {
            Value::Int(ts) => ts,
            _ => unreachable!("the first column is the time"),
        })
        .collect();
    let columns = types
        .iter()
        .enumerate()
        .map(|(column, ty)| Column::from_values(*ty, rows.iter().map(|row| row[column].clone())));
    let batch = Batch::stream(ts, columns.collect());
    let header = Header {
        stream,
        ..Header::default()
    };
    let mut writer = RecordingWriter::create(path, &header).unwrap();
    writer.write(&batch).unwrap();
    Box::new(writer).finish().unwrap();
}

fn tables(output: &str) -> Vec<Json> {
    let lines = output.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("an object per line")
}

#[test]
fn the_times_of_a_recording_are_added_up() {
    let scratch = Scratch::new();
    let file = scratch.file("paths.parquet");
    recorded(Path::new(&file));
    let of =
        |args: &[&str]| tables(&run(&[&["path", "--json", "--from", &file], args].concat()).fine());

    let [all] = &of(&["--slowest", "2"])[..] else {
        panic!("one table of everything");
    };
    assert_eq!(all["begin"], "2023-11-14T22:13:20.000000000Z");
    assert_eq!(all["end"], "2023-11-14T22:13:21.500000000Z");
    let web = &all["disks"][0];
    assert_eq!(
        (&web["vm"], &web["vdisk"], &web["pdisk"]),
        (&json!("web"), &json!("/dev/vda"), &json!("/dev/sda"))
    );
    // 8 requests of 45 us and, at the device, 60 to 130 us.
    let total = 8 * 45 + 760;
    for (level, sum, median) in [
        ("vdisk_wait", 40, 5),
        ("app_wait", 0, 0),
        ("file", 80, 10),
        ("block_wait", 160, 20),
        ("device", 760, 90),
        ("completion", 80, 10),
        ("total", total, 135),
    ] {
        let times = &web["levels"][level];
        assert_eq!(
            (&times["requests"], &times["sum"]),
            (&json!(8), &json!(1_000 * sum))
        );
        assert_eq!(times["share"], json!(sum as f64 / total as f64), "{level}");
        assert_eq!(times["mean"], json!(125.0 * sum as f64), "{level}");
        let p50 = times["p50"].as_f64().unwrap();
        let expected = 1_000.0 * f64::from(median);
        assert!((p50 - expected).abs() <= expected / 128.0, "{level}: {p50}");
    }
    let host = &all["disks"][1];
    assert_eq!(
        (&host["vm"], &host["untied"]),
        (&Json::Null, &json!({"metadata": 1}))
    );
    assert_eq!(host["levels"]["file"]["requests"], 0);
    assert_eq!(all["disks"].as_array().unwrap().len(), 3);
    let slowest = all["slowest"].as_array().unwrap();
    let latencies: Vec<_> = slowest.iter().map(|row| &row["latency"]).collect();
    assert_eq!(latencies, [&json!(1_000_000), &json!(175_000)]);
    assert_eq!(slowest[1]["path"], "/srv/a\u{1b}b");
    assert_eq!(
        (&slowest[1]["device"], &slowest[1]["user_data"]),
        (&json!(130_000), &json!(5))
    );

    let seconds = of(&["1"]);
    let requests = |table: &Json| -> Vec<Json> {
        let disks = table["disks"].as_array().unwrap().iter();
        disks
            .map(|disk| disk["levels"]["total"]["requests"].clone())
            .collect()
    };
    let counts: Vec<_> = seconds.iter().map(requests).collect();
    assert_eq!(counts, [vec![json!(8), json!(1)], vec![json!(1)]]);
    assert_eq!(of(&["1", "1"]), seconds[..1]);
    assert_eq!(requests(&of(&["-w", "web"])[0]), [json!(8)]);
    assert_eq!(requests(&of(&["-i", "sdb"])[0]), [json!(1)]);
    assert_eq!(requests(&of(&["-i", "/dev/sda"])[0]), [json!(8), json!(1)]);
}

#[test]
fn tables_and_waterfalls_are_text() {
    let scratch = Scratch::new();
    let file = scratch.file("paths.parquet");
    recorded(Path::new(&file));
    let table = run(&["path", "--from", &file, "--slowest", "2"]).fine();
    let line = |words: &[&str]| {
        let is_it = |line: &&str| line.split_whitespace().eq(words.iter().copied());
        assert!(table.lines().any(|line| is_it(&line)), "{words:?}: {table}");
    };
    line(&[
        "VM", "VDISK", "DISK", "LEVEL", "REQUESTS", "SHARE", "MEAN", "P50", "P99",
    ]);
    line(&[
        "web", "/dev/vda", "/dev/sda", "file", "8", "7.1", "%", "10.0", "us", "10.0", "us", "10.0",
        "us",
    ]);
    line(&["-", "-", "/dev/sda", "file", "0", "0.0", "%", "-", "-", "-"]);
    line(&["-", "-", "/dev/sda:", "untied:", "metadata", "1"]);
    let bar = "#".repeat(45);
    line(&["block_wait", "900.0", "us", &bar]);
    assert!(table.contains("\n1. 1.0 ms  -  -  /dev/sda  w 4.0 KiB  untied: metadata  fio[77]\n"));
    assert!(
        table.contains("at 8.0 KiB  fio[77]  user_data 5\n"),
        "{table}"
    );
    assert!(!table.contains('\u{1b}'), "{table:?}");
}

#[test]
fn sources_without_levels_and_bad_options_are_rejected() {
    let sample = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../samples/fio-loop.parquet"
    );
    for (args, reason) in [
        (&["path", "--from", sample][..], "IOpath"),
        (&["path", "10ms"], "at least 100ms"),
        (&["path", "--slowest", "2000"], "2000"),
        (&["path", "-i", "nosuchdisk"], "nosuchdisk"),
    ] {
        let output = run(args);
        assert_eq!(
            (output.code, output.out.as_str()),
            (2, ""),
            "{args:?}: {}",
            output.err
        );
        assert!(output.err.contains(reason), "{args:?}: {}", output.err);
    }
}

/// Whether this host has stream `IOpath`; otherwise logs that `test` is skipped.
pub fn has_levels(test: &str) -> bool {
    let output = run(&["path", "--for", "10ms"]);
    if output.code == 1 {
        skipped(test, output.err.trim_end());
    }
    output.code == 0
}

/// The tables of a device while `work` runs, until they have a number of requests at `level`.
fn observe(disk: &LoopDisk, level: &str, requests: i64, work: impl FnOnce()) -> Vec<Json> {
    let args = [
        "path",
        "--json",
        "--slowest",
        "1",
        "-i",
        disk.name(),
        "100ms",
    ];
    let mut path = weir(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(path.stdout.take().expect("piped")).lines();
    let mut next = || -> Json {
        let line = lines.next().expect("a table per interval").unwrap();
        serde_json::from_str(&line).unwrap()
    };
    // Everything after the first table is observed.
    next();
    work();
    let mut tables = Vec::new();
    while of_level(&tables, level, "requests") < requests {
        tables.push(next());
    }
    interrupt(&path);
    let _ = path.wait();
    tables
}

/// A figure of a level, of all tables.
fn of_level(tables: &[Json], level: &str, figure: &str) -> i64 {
    let disks = tables
        .iter()
        .flat_map(|table| table["disks"].as_array().unwrap());
    disks
        .map(|disk| disk["levels"][level][figure].as_i64().unwrap())
        .sum()
}

/// The level with the largest share of the time of all tables, which the table with the most time
/// names.
fn slowest_level(tables: &[Json]) -> &'static str {
    let levels = ["app_wait", "file", "block_wait", "device", "completion"];
    let slowest = levels
        .into_iter()
        .max_by_key(|level| of_level(tables, level, "sum"));
    let slowest = slowest.expect("there are levels");
    let disks = tables
        .iter()
        .flat_map(|table| table["disks"].as_array().unwrap());
    let most = disks.max_by_key(|disk| disk["levels"]["total"]["sum"].as_i64());
    let named = &most.expect("there is a disk")["dominant"];
    assert_eq!(named["level"], slowest, "{tables:?}");
    assert!(named["share"].as_f64() > Some(0.2), "{named}");
    slowest
}

#[test]
fn a_limit_of_a_cgroup_is_a_wait_in_the_block_layer() {
    let test = "a_limit_of_a_cgroup_is_a_wait_in_the_block_layer";
    let Some(disk) = has_levels(test).then(|| loop_disk(test)).flatten() else {
        return;
    };
    let Some(limit) = WriteLimit::new(&disk, 20) else {
        return skipped(test, "no limits of blkio, cgroups v1");
    };
    let file = disk.file_system().unwrap().join("limited");
    let file = file.to_str().unwrap();
    let create = format!("of={file}");
    weir_testing::run(
        "dd",
        &["if=/dev/zero", &create, "bs=16k", "count=6", "conv=fsync"],
    )
    .unwrap();
    let tables = observe(&disk, "completion", 6, || {
        let script = r#"echo $$ > "$1"
            exec dd if=/dev/zero of="$2" bs=16k count=6 oflag=direct conv=notrunc"#;
        weir_testing::run("sh", &["-c", script, "sh", &limit.processes(), file]).unwrap();
    });
    assert_eq!(slowest_level(&tables), "block_wait", "{tables:?}");
    let slowest = tables
        .iter()
        .flat_map(|table| table["slowest"].as_array().unwrap());
    let written: Vec<_> = slowest.filter(|row| row["path"] == file).collect();
    assert!(!written.is_empty(), "{tables:?}");
    assert!(
        written
            .iter()
            .all(|row| row["comm"] == "dd" && row["op"] == "w")
    );
}

#[test]
fn a_slow_device_is_named() {
    let test = "a_slow_device_is_named";
    if !has_levels(test) {
        return;
    }
    let disk = match SlowDisk::new(8, 20) {
        Ok(disk) => disk,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    let device = format!("of={}", disk.path());
    let tables = observe(&disk, "device", 8, || {
        let args = ["if=/dev/zero", &device, "bs=4k", "count=8", "oflag=direct"];
        weir_testing::run("dd", &args).unwrap();
    });
    assert_eq!(slowest_level(&tables), "device", "{tables:?}");
}

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Process {
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        Process(quiet.spawn().unwrap())
    }

    fn id(&self) -> String {
        self.0.id().to_string()
    }

    /// Whether it waits in a write(2) of the host's processors (x86-64, arm64).
    fn is_in_write(&self) -> bool {
        let call = fs::read_to_string(format!("/proc/{}/syscall", self.id()));
        call.is_ok_and(|call| ["1 ", "64 "].iter().any(|number| call.starts_with(number)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file of this many blocks of 16 KiB that are on the device.
fn written_file(folder: &Path, blocks: u32) -> String {
    let file = folder.join("file").to_str().unwrap().to_owned();
    let (to, count) = (format!("of={file}"), format!("count={blocks}"));
    let args = ["if=/dev/zero", &to, "bs=16k", &count, "conv=fsync"];
    weir_testing::run("dd", &args).unwrap();
    file
}

/// A file system on which nothing can be written, until it is dropped.
struct Frozen<'a>(&'a str);

impl Frozen<'_> {
    fn new(folder: &str) -> Frozen<'_> {
        weir_testing::run("fsfreeze", &["-f", folder]).unwrap();
        Frozen(folder)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(why) = weir_testing::run("fsfreeze", &["-u", self.0]) {
            eprintln!("{why:#}");
        }
    }
}

#[test]
fn a_wait_for_a_lock_of_the_file_system_is_a_wait_in_the_file_system() {
    let test = "a_wait_for_a_lock_of_the_file_system_is_a_wait_in_the_file_system";
    let Some(disk) = has_levels(test).then(|| loop_disk(test)).flatten() else {
        return;
    };
    let folder = disk.file_system().unwrap();
    let file = format!("of={}", written_file(&folder, 1));
    let tables = observe(&disk, "completion", 1, || {
        let frozen = Frozen::new(folder.to_str().unwrap());
        let args = ["if=/dev/zero", &file, "bs=16k", "count=1", "oflag=direct"];
        // Without O_CREAT, which waits as well.
        let mut writer = Command::new("dd");
        let mut writer = Process::start(writer.args(args).arg("conv=notrunc,nocreat"));
        wait_until("a write that waits", || writer.is_in_write());
        thread::sleep(Duration::from_millis(200));
        drop(frozen);
        assert!(writer.0.wait().unwrap().success());
    });
    assert_eq!(slowest_level(&tables), "file", "{tables:?}");
}

#[test]
fn a_slow_journal_is_a_wait_for_completion() {
    let test = "a_slow_journal_is_a_wait_for_completion";
    if !has_levels(test) {
        return;
    }
    // Dropped after the file system.
    let journal = match SlowDisk::new(8, 25) {
        Ok(journal) => journal,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    let Some(disk) = loop_disk(test) else {
        return;
    };
    let folder = disk.file_system_with_journal(&journal).unwrap();
    let file = format!("of={}", folder.join("file").to_str().unwrap());
    let tables = observe(&disk, "completion", 4, || {
        // Each write needs a commit of the journal.
        let args = ["if=/dev/zero", &file, "bs=16k", "count=4"];
        weir_testing::run("dd", &[&args[..], &["oflag=direct,dsync"]].concat()).unwrap();
    });
    assert_eq!(slowest_level(&tables), "completion", "{tables:?}");
}

/// The last processor on which this process may run.
fn processor() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.expect("the kernel lists them").trim();
    list.rsplit([',', '-']).next().unwrap().to_owned()
}

/// Whether a process has used processor time: the sum of user and system time in proc_pid_stat(5).
fn has_run(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let times = fields.split_whitespace().skip(11).take(2);
    times
        .filter_map(|time| time.parse::<u64>().ok())
        .sum::<u64>()
        > 1
}

#[test]
fn a_wait_for_a_processor_is_a_wait_for_completion() {
    let test = "a_wait_for_a_processor_is_a_wait_for_completion";
    let Some(disk) = has_levels(test).then(|| loop_disk(test)).flatten() else {
        return;
    };
    let folder = disk.file_system().unwrap();
    let file = format!("of={}", written_file(&folder, 6));
    let processor = processor();
    let tables = observe(&disk, "completion", 6, || {
        let args = [&file, "bs=16k", "count=6", "iflag=fullblock"];
        let mut writer = Command::new("dd");
        let writer = writer.args(args).args(["oflag=direct", "conv=notrunc"]);
        let mut writer = Process::start(writer.stdin(Stdio::piped()));
        let mut data = writer.0.stdin.take().expect("piped");
        // The first block is read when the process has begun.
        data.write_all(&[1; 16 << 10]).unwrap();
        weir_testing::run("taskset", &["-cp", &processor, &writer.id()]).unwrap();
        // It runs when no other process wants to, and one always does.
        weir_testing::run("chrt", &["--idle", "-p", "0", &writer.id()]).unwrap();
        let mut busy = Command::new("taskset");
        let busy = busy.args(["-c", &processor, "sh", "-c", "while :; do :; done"]);
        let busy = Process::start(busy);
        wait_until("it is busy", || has_run(&busy.id()));
        data.write_all(&[1; 5 * (16 << 10)]).unwrap();
        drop(data);
        assert!(writer.0.wait().unwrap().success());
        drop(busy);
    });
    assert_eq!(slowest_level(&tables), "completion", "{tables:?}");
}
