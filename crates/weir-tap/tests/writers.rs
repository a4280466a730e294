//! Traces written by weir are readable by other tools and by weir.

mod traces;

use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use traces::{CollectedEvents, Scratch, installed, read, sample};
use weir_model::{Event, EventKind, IoBatch, IoEvent, Op, Symbol, Value};
use weir_tap::format::{Header, Input, TraceInput, TraceOptions, convert, for_writing};

/// Converts, and checks that reading loses nothing.
fn converted(from: &Path, to: &Path) -> Vec<String> {
    let mut last = 0.0;
    let input = Input::open(&TraceInput::file(from)).unwrap();
    let converted = convert(input, &TraceOptions::default(), to, None, &mut |p| {
        last = p;
        true
    })
    .unwrap();
    assert_eq!(converted.messages, Vec::<String>::new());
    let missed = converted
        .counts
        .iter()
        .filter(|c| c.counter == "events_lost");
    assert_eq!(missed.map(|c| c.total).sum::<i64>(), 0);
    assert!(last > 0.0 && converted.rows > 0);
    converted.remarks
}

/// The standard output of a program.
fn output(program: &str, arguments: &[&str], directory: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A request with its completion, in ns: inserted, issued, completed.
#[derive(Clone, Copy, Debug)]
struct Made {
    op: Op,
    times: [i64; 3],
    sector: i64,
    sectors: i64,
    error: Option<i64>,
    pid: Option<i64>,
    flags: &'static str,
    disk: &'static str,
}

/// The rows of a tap for requests.
fn rows(requests: &[Made]) -> Vec<IoEvent> {
    let mut rows = Vec::new();
    for (i, made) in requests.iter().enumerate() {
        let [inserted, issued, done] = made.times;
        let sector = (made.op != Op::Flush).then_some(made.sector);
        let sectors = if made.op == Op::Flush {
            0
        } else {
            made.sectors
        };
        let mut event = Event::new(
            issued,
            EventKind::Request,
            made.op,
            i as i64,
            sector,
            sectors,
        );
        event.pdisk = Some(Symbol::new(made.disk));
        event.pid = made.pid;
        event.comm = made.pid.map(|pid| Symbol::new(&format!("proc{pid}")));
        event.cpu = Some(0);
        event.flags = (!made.flags.is_empty()).then(|| Symbol::new(made.flags));
        event.merges = Some(0);
        let row = IoEvent::new(event);
        rows.push(row);
        let kind = made.error.map_or(EventKind::Response, |_| EventKind::Error);
        let ended = Event {
            ts: done,
            kind,
            error: made.error,
            ..event
        };
        rows.push(IoEvent {
            event: ended,
            wait_ns: Some(issued - inserted),
            service_ns: Some(done - issued),
            latency_ns: Some(done - inserted),
            ..row
        });
    }
    rows.sort_by_key(|r| r.event.ts);
    rows
}

fn write(path: &Path, rows: &[IoEvent]) -> Vec<String> {
    let mut writer = for_writing(path, None)
        .unwrap()
        .writer(path, &Header::default())
        .unwrap();
    for part in rows.chunks(7) {
        writer.write(&IoBatch::new(None).build(part)).unwrap();
    }
    writer.finish().unwrap()
}

/// Requests at distinct sectors, of the operations that blktrace can represent.
fn requests() -> impl Strategy<Value = Vec<Made>> {
    let ops = [Op::Read, Op::Write, Op::Discard, Op::Flush];
    let request = (
        0..4usize,
        1..10_000i64,
        (0..5_000i64, 1..5_000i64),
        1..4096i64,
        proptest::option::of(1..200i64),
        proptest::option::of(1..9i64),
        0..4usize,
        0..2usize,
    );
    proptest::collection::vec(request, 1..60).prop_map(move |made| {
        let mut at = 1_700_000_000_000_000_000;
        let made = made.into_iter().enumerate();
        let made = made.map(
            |(i, (op, gap, (wait, service), sectors, error, pid, flags, disk))| {
                // Flushes have no sector that distinguishes them: they do not overlap.
                at += if ops[op] == Op::Flush { 20_000 } else { gap };
                let issued = at + wait;
                let done = issued + service;
                if ops[op] == Op::Flush {
                    at = done + 20_000;
                }
                Made {
                    op: ops[op],
                    times: [issued - wait, issued, done],
                    sector: i as i64 * 10_000,
                    sectors,
                    error,
                    pid,
                    flags: ["", "S", "FS", "AM"][flags],
                    disk: ["8,0", "259,1"][disk],
                }
            },
        );
        made.collect()
    })
}

/// The rows of a trace without the columns that depend on other requests.
fn essence(collected: &CollectedEvents) -> Vec<(i64, Vec<Value>)> {
    let columns = [
        "type", "op", "sector", "sectors", "pdisk", "pid", "comm", "flags", "error", "wait",
        "service", "latency",
    ];
    let mut rows: Vec<_> = (0..collected.recording.len())
        .map(|row| {
            let schema = weir_model::event::io_schema();
            let values = columns.map(|c| collected.recording.rows[row][schema.index(c)].clone());
            (collected.recording.ts[row], values.to_vec())
        })
        .collect();
    rows.sort();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_blktrace_file_gives_back_what_was_written(requests in requests()) {
        let scratch = Scratch::new();
        let rows = rows(&requests);
        let recording = scratch.path().join("x.parquet");
        write(&recording, &rows);
        let trace = scratch.path().join("x.blktrace.0");
        prop_assert_eq!(write(&trace, &rows), Vec::<String>::new());
        let mut written = essence(&read(&recording));
        // An unknown pid is 0 in blktrace.
        for (_, row) in &mut written {
            if row[5].is_null() {
                row[5] = Value::Int(0);
            }
        }
        prop_assert_eq!(essence(&read(&trace)), written);
    }

    #[test]
    fn an_iolog_gives_back_the_requests(requests in requests()) {
        let scratch = Scratch::new();
        let rows = rows(&requests);
        let log = scratch.path().join("x.iolog");
        write(&log, &rows);
        let collected = read(&log);
        let asked: Vec<_> = rows.iter().filter(|r| r.event.kind == EventKind::Request).collect();
        let first = asked[0].event.ts;
        let times: Vec<i64> = asked.iter().map(|r| (r.event.ts - first) / 1000 * 1000).collect();
        prop_assert_eq!(&collected.iostream.ts, &times);
        let whats = asked.iter().map(|r| Value::Text(r.event.op.symbol()));
        prop_assert_eq!(collected.io.column("op"), whats.collect::<Vec<_>>());
        let lengths: Vec<i64> = asked.iter().map(|r| r.event.sectors).collect();
        prop_assert_eq!(collected.io.ints("sectors"), lengths);
        let sectors: Vec<i64> = asked.iter().filter_map(|r| r.event.sector).collect();
        prop_assert_eq!(collected.io.ints("sector"), sectors);
    }
}

#[test]
fn what_a_format_has_no_room_for_is_remarked() {
    let scratch = Scratch::new();
    let zeroes = Made {
        op: Op::WriteZeroes,
        times: [1000, 2000, 3000],
        sector: 0,
        sectors: 1 << 30,
        error: None,
        pid: None,
        flags: "",
        disk: "sda",
    };
    let remarks = write(&scratch.path().join("x.blktrace.0"), &rows(&[zeroes]));
    assert!(
        remarks
            .iter()
            .any(|r| r.contains("5 write zeroes written as writes")),
        "{remarks:?}"
    );
    assert!(
        remarks.iter().any(|r| r.contains("above 4 GiB")),
        "{remarks:?}"
    );
    assert!(write(&scratch.path().join("x.iolog"), &rows(&[zeroes]))[0].contains("1 write zeroes"));
    let refused = for_writing(Path::new("x.csv"), None)
        .err()
        .unwrap()
        .to_string();
    assert_eq!(
        refused,
        "x.csv: the file's extension names no format that can be written; use --to-format; supported formats: recording, blktrace, iolog"
    );
    assert!(
        for_writing(Path::new("x"), Some("msr"))
            .err()
            .unwrap()
            .to_string()
            .contains("read but not written")
    );
}

#[test]
fn a_request_that_was_issued_twice_is_so_in_blktrace() {
    let scratch = Scratch::new();
    let once = Made {
        op: Op::Read,
        times: [1000, 2000, 9000],
        sector: 8,
        sectors: 8,
        error: None,
        pid: Some(1),
        flags: "",
        disk: "8,0",
    };
    let mut rows = rows(&[once]);
    rows[1].wait_ns = Some(4000);
    rows[1].service_ns = Some(4000);
    let trace = scratch.path().join("x.blktrace.0");
    write(&trace, &rows);
    let collected = read(&trace);
    assert_eq!(collected.iostream.ts, [2000, 9000]);
    assert_eq!(
        (collected.io.ints("wait"), collected.io.ints("service")),
        (vec![4000], vec![4000])
    );
}

#[test]
fn a_recording_keeps_everything_of_the_trace_it_was_made_from() {
    let scratch = Scratch::new();
    for name in [
        "cloudphysics/cloudPhysicsIO.vscsi",
        "disksim/hp_c2247a.trace",
        "blktrace-takeoverjp/sample.blktrace.0",
    ] {
        let Some(file) = sample("a_recording_keeps", name) else {
            return;
        };
        let recording = scratch.path().join("x.parquet");
        converted(&file, &recording);
        let (trace, recorded) = (read(&file), read(&recording));
        assert!(trace.recording == recorded.recording, "{name}");
        assert!(trace.io == recorded.io, "{name}");
        assert!(trace.iostream == recorded.iostream, "{name}");
    }
}

/// The numbers of a line of btt's output: `D2C 0.000052471 0.000055949 0.000102460 963`.
fn btt_line(text: &str, what: &str) -> Vec<String> {
    let line = text
        .lines()
        .find(|l| l.split_whitespace().next() == Some(what));
    let line = line.unwrap_or_else(|| panic!("{what} in {text}"));
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

#[test]
fn btt_and_blkparse_report_the_same_for_the_written_file_and_the_original() {
    let test = "btt_and_blkparse_say";
    let Some(file) = sample(test, "blktrace-takeoverjp/sample.blktrace.0") else {
        return;
    };
    if !installed(test, "blkparse") || !installed(test, "btt") {
        return;
    }
    let scratch = Scratch::new();
    // Through a recording, as users do.
    converted(&file, &scratch.path().join("x.parquet"));
    converted(
        &scratch.path().join("x.parquet"),
        &scratch.path().join("ours.blktrace.0"),
    );
    let ours = output("btt", &["-i", "ours.blktrace.0"], scratch.path());
    let original = output("btt", &["-i", file.to_str().unwrap()], scratch.path());
    // Until the insertion nothing is recorded: the wait is I2D.
    // btt prints 1 ns for equal times.
    assert_eq!(btt_line(&ours, "Q2G")[1], "0.000000001");
    assert_eq!(btt_line(&ours, "G2I")[1], "0.000000001");
    assert_eq!(btt_line(&ours, "I2D")[3], "963");
    for what in ["Q2Q", "D2C", "Q2C"] {
        assert_eq!(btt_line(&ours, what), btt_line(&original, what), "{what}");
    }
    assert_eq!(
        btt_line(&ours, "D2C"),
        ["0.000052471", "0.000055949", "0.000102460", "963"]
    );
    let text = output("blkparse", &["-i", "ours"], scratch.path());
    for line in [
        "Reads Queued:         963,     3852KiB",
        "Read Dispatches:      963,     3852KiB",
        "Reads Completed:      963,     3852KiB",
        // Q, G, I, D and C.
        "Events (ours): 4815 entries",
        "Skips: 0 forward",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    // blkparse's output for it is read back as the original.
    std::fs::write(scratch.path().join("ours.txt"), &text).unwrap();
    let (printed, written) = (
        read(&scratch.path().join("ours.txt")),
        read(&scratch.path().join("ours.blktrace.0")),
    );
    assert_eq!(printed.messages, Vec::<String>::new());
    for column in [
        "type",
        "sector",
        "sectors",
        "wait",
        "service",
        "latency",
        "in_flight",
    ] {
        assert_eq!(
            printed.recording.column(column),
            written.recording.column(column),
            "{column}"
        );
    }
}

/// The number of events of each action in a file of blktrace, by its letter.
fn actions(bytes: &[u8]) -> std::collections::BTreeMap<char, usize> {
    // From linux/blktrace_api.h: the letters of the actions from 1 on, and the bit of notes.
    const LETTERS: &[u8] = b"QMFGSRDCPUTIXB";
    const NOTE: u32 = 1 << (10 + 16);
    let (mut actions, mut at) = (std::collections::BTreeMap::new(), 0);
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    while at < bytes.len() {
        assert_eq!(u32_at(at) >> 8, 0x65_6174, "magic number at byte {at}");
        let (action, payload) = (u32_at(at + 28), u32_at(at + 44) >> 16);
        if action & NOTE == 0 {
            let letter = LETTERS[(action & 0xff) as usize - 1];
            *actions.entry(char::from(letter)).or_default() += 1;
        }
        at += 48 + payload as usize;
    }
    actions
}

/// A trace that Linux 6.18 wrote of a loop device with the scheduler mq-deadline, under fio with
/// direct I/O and under dd through the page cache.
fn traced_merges() -> Vec<u8> {
    let packed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/traces/mq-deadline.blktrace.gz"
    );
    let mut bytes = Vec::new();
    let file = std::fs::File::open(packed).unwrap();
    let mut file = flate2::read::GzDecoder::new(file);
    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}

#[test]
fn merges_and_insertions_of_a_trace_that_the_kernel_wrote_are_kept() {
    let scratch = Scratch::new();
    let original = traced_merges();
    let theirs = actions(&original);
    let path = |name: &str| scratch.path().join(name);
    std::fs::write(path("theirs.blktrace.0"), &original).unwrap();
    converted(&path("theirs.blktrace.0"), &path("x.parquet"));
    converted(&path("x.parquet"), &path("ours.blktrace.0"));
    let ours = actions(&std::fs::read(path("ours.blktrace.0")).unwrap());
    for letter in ['Q', 'M', 'G', 'I', 'D'] {
        assert_eq!(
            ours[&letter], theirs[&letter],
            "{letter}: {ours:?}, {theirs:?}"
        );
    }
    assert!(ours[&'M'] > 50 && ours[&'I'] > 50, "{ours:?}");
    // The same again, and the same rows.
    converted(&path("ours.blktrace.0"), &path("again.parquet"));
    converted(&path("again.parquet"), &path("again.blktrace.0"));
    let again = actions(&std::fs::read(path("again.blktrace.0")).unwrap());
    assert_eq!(again, ours);
    let (theirs, ours) = (
        read(&path("theirs.blktrace.0")),
        read(&path("ours.blktrace.0")),
    );
    for column in ["op", "sector", "sectors", "wait", "service", "latency"] {
        assert_eq!(ours.io.column(column), theirs.io.column(column), "{column}");
    }
    let merges = |trace: &CollectedEvents| trace.io.ints("merges");
    assert_eq!(merges(&ours), merges(&theirs));
}

#[test]
fn fio_replays_what_we_write() {
    let test = "fio_replays";
    if !installed(test, "fio") {
        return;
    }
    let scratch = Scratch::new();
    let disk: &'static str = Box::leak(
        scratch
            .path()
            .join("disk")
            .to_str()
            .unwrap()
            .to_owned()
            .into(),
    );
    std::fs::write(disk, vec![0; 1 << 20]).unwrap();
    let request = |i: i64| Made {
        op: if i % 4 == 0 { Op::Write } else { Op::Read },
        times: [i * 1000, i * 1000 + 100, i * 1000 + 900],
        sector: i * 8 % 2048,
        sectors: 8,
        error: None,
        pid: Some(7),
        flags: "",
        disk,
    };
    let rows = rows(&(1..=100).map(request).collect::<Vec<_>>());
    write(&scratch.path().join("x.iolog"), &rows);
    write(&scratch.path().join("x.blktrace.0"), &rows);
    for (log, redirect) in [("x.iolog", None), ("x.blktrace.0", Some(disk))] {
        let read = format!("--read_iolog={log}");
        let mut arguments = vec![
            "--name=x",
            &read,
            "--output-format=terse",
            "--replay_no_stall=1",
        ];
        let redirect = redirect.map(|to| format!("--replay_redirect={to}"));
        arguments.extend(redirect.as_deref());
        let text = output("fio", &arguments, scratch.path());
        let line = text
            .lines()
            .find(|l| l.starts_with("3;"))
            .unwrap_or_else(|| panic!("{text}"));
        let fields: Vec<&str> = line.split(';').collect();
        // Terse version 3: field 6 is the KiB read, field 47 the KiB written.
        assert_eq!((fields[5], fields[46]), ("300", "100"), "{log}");
    }
}

#[test]
fn an_iolog_that_fio_wrote_is_read() {
    let test = "an_iolog_that_fio_wrote";
    if !installed(test, "fio") {
        return;
    }
    let scratch = Scratch::new();
    let arguments = [
        "--name=x",
        "--rw=randrw",
        "--size=64k",
        "--bs=4k",
        "--fsync=4",
        "--filename=disk",
        "--write_iolog=x.iolog",
        "--output=out",
    ];
    output("fio", &arguments, scratch.path());
    let collected = read(&scratch.path().join("x.iolog"));
    assert_eq!(collected.messages, Vec::<String>::new());
    assert_eq!(
        collected.io.count("op", "r") + collected.io.count("op", "w"),
        16
    );
    assert!(collected.io.count("op", "f") > 0);
}

#[test]
fn the_files_of_all_cpus_are_one_trace() {
    let scratch = Scratch::new();
    let request = |i: i64| Made {
        op: Op::Read,
        times: [i * 1000, i * 1000 + 100, i * 1000 + 900],
        sector: i * 8,
        sectors: 8,
        error: None,
        pid: Some(7),
        flags: "",
        disk: "8,0",
    };
    let all: Vec<Made> = (0..100).map(request).collect();
    let of_cpu = |cpu: usize| all.iter().skip(cpu).step_by(3).copied().collect::<Vec<_>>();
    for cpu in 0..3 {
        write(
            &scratch.path().join(format!("sda.blktrace.{cpu}")),
            &rows(&of_cpu(cpu)),
        );
    }
    for name in ["sda", "sda.blktrace.0", "sda.blktrace.2"] {
        let collected = read(&scratch.path().join(name));
        assert_eq!(collected.io.len(), 100, "{name}");
        assert_eq!(
            collected.io.ints("seek"),
            [1; 99],
            "{name}: in order of issue"
        );
        assert_eq!(
            collected.io.ints("cpu").iter().filter(|c| **c == 2).count(),
            33
        );
    }
}
