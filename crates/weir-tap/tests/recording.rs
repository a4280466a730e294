//! Recordings: written files are readable, in DuckDB, Polars and pandas too, and a crash loses at
//! most the last row group.

#[path = "traces/random_requests.rs"]
mod random_requests;
mod traces;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use proptest::prelude::*;
use random_requests::{Irregularity, Load};
use traces::{CollectedEvents, Scratch, collect, read, read_bytes};
use weir_model::capabilities::recording;
use weir_model::{Event, EventKind, IoBatch, IoEvent, Level, Op, Symbol, Value};
use weir_tap::EventCount;
use weir_tap::format::recording::RecordingWriter;
use weir_tap::format::{self, Header, Input, TraceInput, TraceOptions, TraceWriter, convert};
use weir_testing::{python_with, skip};

/// In November 2023.
const START: i64 = 1_700_000_000_000_000_000;

fn io(ts: i64, kind: EventKind, req_id: i64) -> IoEvent {
    let mut event = Event::new(ts, kind, Op::Write, req_id, Some(8 * req_id), 8);
    event.vm = Some(Symbol::new("muscatvm51"));
    event.vdisk = Some(Symbol::new("/dev/vda"));
    event.pid = (req_id % 2 == 0).then_some(42);
    let done = kind != EventKind::Request;
    IoEvent {
        wait_ns: done.then_some(10),
        service_ns: done.then_some(90),
        latency_ns: done.then_some(100),
        in_flight: done.then_some(1),
        seek_sectors: (done && req_id > 0).then_some(1),
        interarrival_ns: (done && req_id > 0).then_some(7),
        issue_ts: done.then_some(ts - 3),
        ..IoEvent::new(event)
    }
}

/// Writes `groups` row groups of `rows` rows each; returns the size of the file after each.
fn write_groups(path: &Path, groups: i64, rows: i64, close: bool) -> Vec<u64> {
    let header = Header {
        source: "a test".into(),
        paired: true,
        ..Header::default()
    };
    let mut writer = RecordingWriter::create(path, &header).unwrap();
    let length = || std::fs::metadata(path).unwrap().len();
    let mut ends = vec![length()];
    for group in 0..groups {
        let kinds = [EventKind::Request, EventKind::Response];
        let events = (0..rows).map(|i| io(START + group * rows + i, kinds[(i % 2) as usize], i));
        writer
            .write(&IoBatch::new(None).build(&events.collect::<Vec<_>>()))
            .unwrap();
        writer.count(vec![EventCount {
            counter: "events_lost",
            cause: Some("ring_full"),
            device: Some(Symbol::new("sda")),
            total: group + 1,
        }]);
        writer.flush_group().unwrap();
        ends.push(length());
    }
    if close {
        Box::new(writer).finish().unwrap();
    }
    ends
}

fn any_event() -> impl Strategy<Value = IoEvent> {
    let name = || proptest::option::of("[a-z/]{0,8}".prop_map(|s| Symbol::new(&s)));
    let number = || proptest::option::of(any::<i64>());
    let what = (
        0..4usize,
        0..5usize,
        any::<i64>(),
        number(),
        0..1i64 << 54,
        0..3usize,
    );
    let texts = (name(), name(), name(), name(), name(), name(), name());
    let numbers = (number(), number(), number(), number(), number(), number());
    let times = (number(), number(), number(), number(), number(), number());
    (what, texts, numbers, times).prop_map(|(what, texts, numbers, times)| {
        let (kind, op, req_id, sector, sectors, level) = what;
        let mut event = Event::new(
            0,
            EventKind::ALL[kind],
            Op::ALL[op],
            req_id,
            sector,
            sectors,
        );
        event.level = Level::ALL[level];
        (
            event.vm,
            event.vdisk,
            event.pdisk,
            event.host,
            event.comm,
            event.cgroup,
            event.flags,
        ) = texts;
        (
            event.agent_ts,
            event.monitor_ts,
            event.pid,
            event.cpu,
            event.error,
            event.merges,
        ) = numbers;
        let (wait_ns, service_ns, latency_ns, in_flight, seek_sectors, interarrival_ns) = times;
        IoEvent {
            wait_ns,
            service_ns,
            latency_ns,
            in_flight,
            seek_sectors,
            interarrival_ns,
            issue_ts: latency_ns,
            ..IoEvent::new(event)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        mut events in proptest::collection::vec(any_event(), 0..40),
        mut times in proptest::collection::vec(any::<i64>(), 40),
        cut in 0..40usize,
    ) {
        times.sort_unstable();
        for (event, ts) in events.iter_mut().zip(times) {
            event.event.ts = ts;
        }
        let scratch = Scratch::new();
        let path = scratch.path().join("x.parquet");
        let mut writer = RecordingWriter::create(&path, &Header::default()).unwrap();
        let (first, second) = events.split_at(cut.min(events.len()));
        writer.write(&IoBatch::new(None).build(first)).unwrap();
        writer.flush_group().unwrap();
        writer.write(&IoBatch::new(None).build(second)).unwrap();
        Box::new(writer).finish().unwrap();
        let collected = read(&path);
        let written = IoBatch::new(None).build(&events);
        prop_assert_eq!(collected.recording.ts, written.ts.to_vec());
        let rows: Vec<Vec<Value>> = (0..written.len()).map(|i| written.row(i)).collect();
        prop_assert_eq!(collected.recording.rows, rows);
    }
}

/// The events of requests like those of a disk.
fn requests(count: usize, seed: u64, irregularity: Irregularity) -> Vec<IoEvent> {
    let mut load = Load::new(seed, irregularity);
    let mut events = Vec::new();
    for _ in 0..count {
        load.request(&mut events);
    }
    load.finish(&mut events);
    events
}

/// Writes events in batches of this many, and a row group after each `groups` batches.
fn write_events(path: &Path, events: &[IoEvent], batch: usize, groups: usize) {
    let mut writer = RecordingWriter::create(path, &Header::default()).unwrap();
    for (at, events) in events.chunks(batch).enumerate() {
        writer.write(&IoBatch::new(None).build(events)).unwrap();
        if at % groups == groups - 1 {
            writer.flush_group().unwrap();
        }
    }
    Box::new(writer).finish().unwrap();
}

/// The rows of events, with their instants.
fn rows_of(events: &[IoEvent]) -> (Vec<i64>, Vec<Vec<Value>>) {
    let batch = IoBatch::new(None).build(events);
    let rows = (0..batch.len()).map(|row| batch.row(row)).collect();
    (batch.ts.to_vec(), rows)
}

/// The rows of a file, where each stream is read on its own, and both at once: then other columns
/// of the file are read.
fn assert_contains(path: &Path, events: &[IoEvent], what: &str) {
    let (ts, rows) = rows_of(events);
    let collected = read(path);
    assert_eq!(collected.messages, Vec::<String>::new(), "{what}");
    assert_eq!(collected.total("events_in"), events.len() as i64, "{what}");
    assert_eq!(collected.recording.ts, ts, "{what}");
    for (at, (read, written)) in collected.recording.rows.iter().zip(&rows).enumerate() {
        assert_eq!(read, written, "{what}: event {at}");
    }
    let finished: Vec<IoEvent> = events.iter().copied().filter(is_finished).collect();
    let (ts, rows) = rows_of(&finished);
    let mut tap = format::open(path, &traces::demands()[..1], &TraceOptions::default()).unwrap();
    let alone = collect(tap.as_mut()).unwrap();
    assert_eq!((&alone.io.ts, &alone.io.rows), (&ts, &rows), "{what}");
    assert_eq!((collected.io.ts, collected.io.rows), (ts, rows), "{what}");
    assert_eq!(alone.total("events_in"), events.len() as i64, "{what}");
}

fn is_finished(event: &IoEvent) -> bool {
    event.event.kind != EventKind::Request
}

#[test]
fn requests_like_those_of_a_disk_are_read_as_they_were_written() {
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    for (seed, tick_ns, one_in, count) in [
        (1, 1, None, 12_000),
        (2, 1, Some(10), 3_000),
        (3, 1_000, Some(10), 3_000),
        (4, 1_000_000, None, 3_000),
        (5, 20_000, Some(2), 3_000),
        (6, 5_000, None, 3_000),
    ] {
        let irregularity = Irregularity { tick_ns, one_in };
        let events = requests(count, seed, irregularity);
        write_events(&path, &events, 700, 3);
        assert_contains(&path, &events, &format!("seed {seed}"));
    }
}

#[test]
fn a_large_batch_and_a_request_that_takes_long_are_read_as_they_were_written() {
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    let mut events = requests(40_000, 9, Irregularity::default());
    // Its response is in another block.
    let response = events.iter().position(is_finished).unwrap();
    let mut late = events.remove(response);
    late.event.ts = events.last().unwrap().event.ts + 1;
    events.push(late);
    write_events(&path, &events, usize::MAX, 1);
    assert_contains(&path, &events, "one batch");
}

#[test]
fn a_request_takes_at_most_12_bytes_and_one_row() {
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    let count = 100_000;
    let events = requests(count, 7, Irregularity::default());
    write_events(&path, &events, 4096, 1000);
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(bytes <= 12 * count as u64, "{bytes} bytes");
    let file = std::fs::File::open(&path).unwrap();
    let reader = parquet::file::reader::SerializedFileReader::new(file).unwrap();
    let rows = parquet::file::reader::FileReader::metadata(&reader)
        .file_metadata()
        .num_rows();
    assert!(rows < count as i64 * 101 / 100, "{rows} rows");
}

/// `samples/three-disks.parquet` has version 1.
#[test]
fn older_versions_are_read() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_version_1 = read(&package.join("../../samples/three-disks.parquet"));
    let of_version_2 = read(&package.join("tests/traces/three-disks-version-2.parquet"));
    assert_eq!(of_version_1.io.len(), 1470);
    assert_eq!(of_version_2.recording, of_version_1.recording);
    assert_eq!(of_version_2.iostream, of_version_1.iostream);
    assert_eq!(of_version_2.io, of_version_1.io);
    assert_eq!(of_version_2.messages, Vec::<String>::new());
}

#[test]
fn io_and_iostream_are_parts_of_a_recording() {
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    write_groups(&path, 3, 10, true);
    let collected = read(&path);
    assert_eq!(
        (
            collected.recording.len(),
            collected.iostream.len(),
            collected.io.len()
        ),
        (30, 30, 15)
    );
    assert_eq!(collected.io.count("type", "Q"), 0);
    assert_eq!(collected.io.ints("latency"), [100; 15]);
    assert_eq!(collected.total("events_in"), 30);
    assert_eq!(collected.messages, Vec::<String>::new(), "it was closed");
    assert_eq!(collected.total("recordings_unfinished"), 0);
}

#[test]
fn what_was_missed_when_it_was_recorded_is_counted_by_its_readers() {
    let scratch = Scratch::new();
    let (path, again) = (
        scratch.path().join("x.parquet"),
        scratch.path().join("again.parquet"),
    );
    write_groups(&path, 3, 10, true);
    assert_eq!(read(&path).total("events_lost ring_full"), 3);
    // A recording of a recording keeps its losses, and the fact that the first one was not closed.
    let copy = |from: &Path| {
        let input = Input::open(&TraceInput::file(from)).unwrap();
        convert(input, &TraceOptions::default(), &again, None, &mut |_| true).unwrap();
        read(&again)
    };
    let copied = copy(&path);
    assert_eq!(copied.total("events_lost ring_full"), 3);
    assert_eq!(copied.messages, Vec::<String>::new());
    let crashed = scratch.path().join("crashed.parquet");
    write_groups(&crashed, 3, 10, false);
    let copied = copy(&crashed);
    assert_eq!(copied.total("recordings_unfinished"), 1);
    assert!(
        copied.messages[0].contains("without footer"),
        "{:?}",
        copied.messages
    );
}

#[test]
fn only_requested_columns_are_read() {
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    write_groups(&path, 1, 10, true);
    let mut demands = traces::demands();
    for demand in &mut demands {
        demand.columns = vec![2];
    }
    let mut tap = format::open(&path, &demands, &TraceOptions::default()).unwrap();
    let columns = recording().schema.fields.len();
    assert_eq!(tap.describe(), [format!("reads 3 of {columns} columns")]);
    let collected = collect(tap.as_mut()).unwrap();
    assert_eq!(collected.io.count("op", "w"), 5);
    assert!(collected.io.column("vm").iter().all(Value::is_null));
}

#[test]
fn assumed_responses_are_no_events() {
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    let header = Header {
        responses_assumed: true,
        paired: true,
        ..Header::default()
    };
    let mut writer = RecordingWriter::create(&path, &header).unwrap();
    let events = [io(1, EventKind::Request, 1), io(1, EventKind::Response, 1)];
    writer.write(&IoBatch::new(None).build(&events)).unwrap();
    Box::new(writer).finish().unwrap();
    let collected = read(&path);
    assert_eq!(
        (
            collected.recording.len(),
            collected.iostream.len(),
            collected.io.len()
        ),
        (2, 1, 1)
    );
}

/// The readable rows of the first `length` bytes of a recording.
fn read_cut(bytes: &[u8], length: u64) -> CollectedEvents {
    let mut tap = format::open_source(
        &TraceInput::bytes(&bytes[..length as usize]),
        &traces::demands(),
        &TraceOptions::default(),
    )
    .unwrap();
    collect(tap.as_mut()).unwrap()
}

#[test]
fn a_recording_cut_off_anywhere_has_all_its_complete_row_groups() {
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    let ends = write_groups(&path, 60, 10, false);
    let bytes = std::fs::read(&path).unwrap();
    let part_footers = ends
        .iter()
        .filter(|&&end| bytes[..end as usize].ends_with(b"WEIR"))
        .count();
    assert!(
        part_footers > 5 && part_footers < 60,
        "both kinds of footer are met: {part_footers}"
    );
    for (groups, pair) in ends.windows(2).enumerate() {
        let (end, next) = (pair[0], pair[1]);
        for length in [end, end + 1, (end + next) / 2, next - 1] {
            let collected = read_cut(&bytes, length);
            assert_eq!(
                collected.recording.len(),
                groups * 10,
                "cut off at {length}"
            );
            assert_eq!(collected.total("bytes_lost"), (length - end) as i64);
            assert_eq!(collected.total("recordings_unfinished"), 1);
            let [message] = &collected.messages[..] else {
                panic!("{:?}", collected.messages);
            };
            assert!(message.contains("has no footer"), "{message}");
            let rows = format!("rows after the first {} are missing", groups * 10);
            assert!(message.contains(&rows), "{message}");
        }
    }
    assert_eq!(read_cut(&bytes, bytes.len() as u64).recording.len(), 600);
}

#[test]
fn a_damaged_row_group_is_reported_and_the_others_are_read() {
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    let ends = write_groups(&path, 3, 1000, true);
    let mut bytes = std::fs::read(&path).unwrap();
    for byte in &mut bytes[ends[1] as usize..ends[1] as usize + 400] {
        *byte ^= 0x5a;
    }
    let collected = read_bytes("recording", &bytes).unwrap();
    assert_eq!(collected.recording.len(), 2000);
    assert_eq!(collected.total("bad_records"), 1);
    assert_eq!(collected.total("events_lost malformed"), 1000);
    assert!(
        collected.messages[0].contains("row group 1"),
        "{:?}",
        collected.messages
    );
    let source = TraceInput::bytes(bytes);
    let options = TraceOptions {
        strict: true,
        ..TraceOptions::default()
    };
    let mut tap = format::open_source(&source, &traces::demands(), &options).unwrap();
    assert!(
        collect(tap.as_mut())
            .unwrap_err()
            .to_string()
            .contains("row group 1")
    );
}

/// A Parquet file of one row whose texts have these lengths, as any writer may create it.
fn write_texts(path: &Path, texts: &[(&str, usize)]) {
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::file::properties::WriterProperties;
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        ("ts", Arc::new(Int64Array::from(vec![START]))),
        ("type", Arc::new(StringArray::from(vec!["R"]))),
    ];
    for (name, bytes) in texts {
        let text = "a".repeat(*bytes);
        columns.push((name, Arc::new(StringArray::from(vec![text]))));
    }
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_enabled(false);
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn a_page_that_expands_beyond_its_bound_is_refused_before_it_is_decompressed() {
    const MIB: usize = 1 << 20;
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    write_texts(&path, &[("comm", MIB)]);
    assert_eq!(read(&path).io.len(), 1);
    write_texts(&path, &[("comm", 65 * MIB)]);
    assert!(std::fs::metadata(&path).unwrap().len() < MIB as u64);
    let collected = read(&path);
    assert_eq!((collected.io.len(), collected.messages.len()), (0, 1));
    let message = &collected.messages[0];
    assert!(message.contains("column comm: a page of 6815"), "{message}");
    assert!(message.contains(path.to_str().unwrap()), "{message}");
}

#[test]
fn a_parquet_file_that_is_no_recording_is_refused() {
    let message = |bytes: &[u8]| read_bytes("recording", bytes).unwrap_err().to_string();
    assert!(message(b"PAR1").contains("no footer"));
    assert!(message(b"PAR1\xff\xff\xff\xffPAR1").contains("no footer"));
    assert!(message(b"").contains("no footer"));
}

/// Runs Python, with this tool installed, with these lines; without the tool reports that `test` is
/// skipped.
fn python(test: &str, tool: &str, lines: &str) -> Option<String> {
    let python = match python_with(tool) {
        Ok(python) => python,
        Err(why) => return skip(test, format!("no {tool}: {why:#}")),
    };
    let output = Command::new(python).args(["-c", lines]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool}: {message}");
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// The output of the three tools for a recording of 25 row groups with 25 requests each, with a
/// response in every second row.
#[test]
fn duckdb_polars_and_pandas_read_a_recording_as_it_is() {
    let scratch = Scratch::new();
    let closed = scratch.path().join("closed.parquet");
    write_groups(&closed, 40, 50, true);
    let crashed = scratch.path().join("crashed.parquet");
    let ends = write_groups(&crashed, 3, 50, false);
    assert!(ends.len() == 4);
    for (path, rows) in [(&closed, 2000), (&crashed, 150)] {
        let path = path.display();
        let tools = [
            (
                "duckdb",
                format!(
                    "import duckdb\nq = \"select count(*), sum(latency), left(min(ts)::varchar, 4), any_value(vm) \
                     from '{path}' where type <> 'Q'\"\nprint(*duckdb.sql(q).fetchall()[0])"
                ),
                format!("{} {} 2023 muscatvm51", rows / 2, rows * 50),
            ),
            (
                "polars",
                format!(
                    "import polars as p\nd = p.read_parquet('{path}').filter(p.col('type') != 'Q')\n\
                     print(d.height, d['latency'].sum(), d['ts'].dtype, d['vm'].dtype, d['vm'][0])"
                ),
                format!(
                    "{} {} Datetime(time_unit='ns', time_zone='UTC') Categorical muscatvm51",
                    rows / 2,
                    rows * 50
                ),
            ),
            (
                "pandas",
                format!(
                    "import pandas as p, pyarrow.parquet as q\nd = p.read_parquet('{path}')\n\
                     d = d[d.type != 'Q']\nf = q.read_schema('{path}').field('latency')\n\
                     print(len(d), int(d.latency.sum()), d.ts.dtype, d.vm.dtype, f.metadata[b'unit'].decode())"
                ),
                format!("{} {} datetime64[ns, UTC] category ns", rows / 2, rows * 50),
            ),
        ];
        for (tool, lines, expected) in tools {
            let output = python("duckdb_polars_and_pandas", tool, &lines);
            assert!(output.is_none_or(|output| output == expected), "{tool}");
        }
    }
}

#[test]
fn a_recording_that_polars_or_pandas_has_rewritten_is_read() {
    let scratch = Scratch::new();
    let (path, again) = (
        scratch.path().join("x.parquet"),
        scratch.path().join("again.parquet"),
    );
    let irregularity = Irregularity {
        tick_ns: 1_000,
        one_in: Some(10),
    };
    write_events(&path, &requests(1_000, 8, irregularity), 100, 1);
    let ours = read(&path);
    for (tool, lines) in [
        (
            "polars",
            "import polars as p\np.read_parquet('FROM').write_parquet('TO', row_group_size=300)",
        ),
        (
            "pandas",
            "import pandas as p\np.read_parquet('FROM').to_parquet('TO', row_group_size=170)",
        ),
        (
            "duckdb",
            "import duckdb\nduckdb.sql(\"copy 'FROM' to 'TO' (format parquet)\")",
        ),
    ] {
        let lines = lines.replace("FROM", path.to_str().unwrap());
        let lines = lines.replace("TO", again.to_str().unwrap());
        if python("a_recording_rewritten", tool, &lines).is_none() {
            continue;
        }
        let collected = read(&again);
        assert_eq!(collected.messages, Vec::<String>::new(), "{tool}");
        assert_eq!(collected.recording, ours.recording, "{tool}");
        assert_eq!(collected.io, ours.io, "{tool}");
    }
}

#[test]
fn a_part_of_a_recording_has_no_numbers_of_requests() {
    let scratch = Scratch::new();
    let (path, part) = (
        scratch.path().join("x.parquet"),
        scratch.path().join("part.parquet"),
    );
    write_events(&path, &requests(1_000, 8, Irregularity::default()), 100, 1);
    let lines = format!(
        "import duckdb\nduckdb.sql(\"copy (select * from '{}' where sectors > 8) to '{}' (format parquet)\")",
        path.display(),
        part.display()
    );
    if python("a_part_of_a_recording", "duckdb", &lines).is_none() {
        return;
    }
    let (whole, part) = (read(&path), read(&part));
    assert!(part.io.len() > 0 && part.io.len() < whole.io.len());
    let message = part.messages.join("\n");
    assert!(
        message.contains("another program has selected"),
        "{message}"
    );
    for column in ["req_id", "seek", "interarrival"] {
        assert!(
            part.io.column(column).iter().all(Value::is_null),
            "{column}"
        );
    }
    let latencies = |rows: &[i64]| {
        rows.iter()
            .copied()
            .collect::<std::collections::BTreeSet<i64>>()
    };
    let of_whole = latencies(&whole.io.ints("latency"));
    assert!(latencies(&part.io.ints("latency")).is_subset(&of_whole));
}

/// Set for the instance of this test that is killed.
const VICTIM: &str = "WEIR_TEST_RECORDING";

#[test]
fn a_recorder_that_is_killed_leaves_a_readable_file() {
    const ROWS: i64 = 5000;
    if let Some(path) = std::env::var_os(VICTIM) {
        write_groups(Path::new(&path), 100_000, ROWS, false);
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_recorder_that_is_killed_leaves_a_readable_file",
        ])
        .env(VICTIM, &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let length = || std::fs::metadata(&path).map_or(0, |m| m.len());
    while length() < 1 << 20 {
        assert!(
            victim.try_wait().unwrap().is_none(),
            "it writes until it is killed"
        );
        std::thread::yield_now();
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
    let collected = read(&path);
    assert_eq!(collected.messages.len(), 1);
    assert!(
        collected.messages[0].contains("has no footer"),
        "{:?}",
        collected.messages
    );
    assert!(collected.recording.len() > 0);
    assert_eq!(
        collected.recording.len() as i64 % ROWS,
        0,
        "complete row groups"
    );
}
