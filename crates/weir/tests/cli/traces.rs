//! Traces and recordings as they occur in practice: one file for each processor, filtered dumps,
//! recordings with losses and without an end.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use weir_model::{Alias, Batch, Column, Declaration, Field, Schema, Shape, Symbol, Type, Unit};
use weir_tap::EventCount;
use weir_tap::format::{self, Header, Input, TraceInput, TraceOptions, recording};

use crate::support::{Scratch, requests, run, run_in, skipped, weir};

fn answer(args: &[&str], query: &str) -> String {
    let query = ["--final", "--format", "csv", query];
    run(&[&["query"], args, &query].concat()).fine()
}

#[test]
fn a_source_that_is_named_twice_is_read_once() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let processors = ["x.blktrace.0", "x.blktrace.1"].map(path);
    for (processor, places) in processors.iter().zip([0..200u64, 200..500]) {
        let line = |i: u64| {
            let ticks = 128_166_372_030_000_000 + 10_000 * i;
            format!("{ticks},vm1,0,Read,{},4096,5000\n", 4096 * i)
        };
        let trace = scratch.write("t.csv", &places.map(line).collect::<String>());
        run(&["convert", &trace, processor]).fine();
    }
    let [first, second] = &processors;
    let query = "select count(*) as n from IO";
    let of_set = answer(&["--from", first], query);
    assert!(of_set.ends_with(",500\n"), "{of_set}");
    let both = ["--from", first, "--from", second];
    assert_eq!(answer(&both, query), of_set);
    assert_eq!(answer(&["--from", second], query), of_set);
    assert_eq!(
        answer(&["--from", &path("x"), "--from", second], query),
        of_set
    );
    // Joins use the pairs of the source, as with a single source.
    let join = "select r.ts - q.ts from IOstream [range 10 ms] as q, IOstream [range 10 ms] as r \
        where q.type = 'Q' and r.type = 'R' and q.req_id = r.req_id";
    let plan = run(&[&["explain"], &both[..], &[join]].concat()).fine();
    assert!(!plan.contains("not computed from"), "{plan}");

    let trace = scratch.write("t.csv", &requests(100));
    symlink(&trace, path("link.csv")).unwrap();
    let twice = ["--from", &trace, "--from", &path("link.csv")];
    let n = answer(&twice, query);
    assert!(n.ends_with(",100\n"), "{n}");
    let other = scratch.write("other.csv", &requests(100));
    let n = answer(&["--from", &trace, "--from", &other], query);
    assert!(n.ends_with(",200\n"), "{n}");
}

#[test]
fn the_type_line_determines_the_format_of_a_scripts_source() {
    let scratch = Scratch::new();
    // Without the first line, a trace in Tencent's format.
    let rows: String = (1..=30)
        .map(|i| format!("{i},{i},8,{},7\n", i % 2))
        .collect();
    scratch.write("s.dat", &format!("i,i,i,i,i\n{rows}"));
    for columns in [
        "A integer, B integer, C integer, D integer",
        "ReqId integer, Sector integer, Size integer, FtrTS integer",
    ] {
        scratch.write(
            "q",
            &format!(
                "table : register stream S ({columns});\nsource : s.dat\nquery : select * from S;\n"
            ),
        );
        let out = run_in(scratch.path(), &["run", "q"]).fine();
        assert_eq!(out.lines().count(), 30, "{out}");
        assert!(out.starts_with("[1]:+:1, 8, 1, 7\n"), "{out}");
    }
    // Without a type line the file is a trace with the columns of IOstream.
    scratch.write("s.dat", &rows);
    scratch.write(
        "q",
        "table : register stream S (ReqID integer, Colour integer);\nsource : s.dat\nquery : select * from S;\n",
    );
    let output = run_in(scratch.path(), &["run", "q"]);
    assert_eq!(output.code, 2, "{}", output.err);
    assert!(output.err.contains("has no type line"), "{}", output.err);
    let trace = [
        "query",
        "--from",
        "s.dat",
        "--final",
        "select count(*) from IO",
    ];
    assert!(run_in(scratch.path(), &trace).fine().contains("30"));
    scratch.write("s.dat", &format!("i,i,i,i,i\n{rows}"));
    let output = run_in(scratch.path(), &trace);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("`weir run`"), "{}", output.err);
}

#[test]
fn a_dump_from_which_blkparse_left_events_out_misses_nothing() {
    let name = "a_dump_from_which_blkparse_left_events_out_misses_nothing";
    if Command::new("blkparse").arg("-V").output().is_err() {
        return skipped(name, "blkparse is not installed");
    }
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(300));
    let raw = scratch.path().join("t.blktrace.0");
    run(&["convert", &trace, raw.to_str().unwrap()]).fine();
    let filters = ["-a", "issue", "-a", "complete"];
    let status = Command::new("blkparse")
        .current_dir(scratch.path())
        .args(["-i", "t", "-q", "-o", "/dev/null", "-d", "dump.bin"])
        .args(filters)
        .output()
        .unwrap();
    assert!(status.status.success(), "{status:?}");
    let query = [
        "--final",
        "--format",
        "csv",
        "select count(*) as n, min(ts) as first from IO",
    ];
    let of = |from: &str| {
        let output = run(&[&["query", "-v", "--from", from], &query[..]].concat());
        assert!(
            output.err.contains("0 missed, 100 % complete"),
            "{}",
            output.err
        );
        output
    };
    let dump = scratch.path().join("dump.bin");
    let dump = of(dump.to_str().unwrap());
    assert!(dump.err.contains("left out by blkparse"), "{}", dump.err);
    let raw = of(raw.to_str().unwrap());
    // Times in the dump are relative to its first event, which is the first event of the trace
    // here.
    let values = |text: &str| {
        text.lines()
            .last()
            .unwrap()
            .split(',')
            .skip(1)
            .collect::<Vec<_>>()
            .join(",")
    };
    assert_eq!(values(&dump.out), values(&raw.out));
    // Missing events of a raw trace are counted as lost.
    let mut bytes = fs::read(scratch.path().join("t.blktrace.0")).unwrap();
    let events = 48;
    let at = bytes.len() - 10 * events;
    bytes.drain(at..at + 3 * events);
    let cut = scratch.path().join("cut.blktrace.0");
    fs::write(&cut, bytes).unwrap();
    let output = run(&[&["query", "--from", cut.to_str().unwrap()], &query[..]].concat());
    assert!(
        output.err.contains("3 events lost (unrecorded)"),
        "{}",
        output.err
    );
}

/// A recording at `path` with this number of lost requests, closed or not.
pub fn recorded(trace: &str, path: &Path, lost: i64, close: bool) {
    let header = Header {
        source: "a test".into(),
        host: Some("alpha".into()),
        kernel: Some("6.1.0-test".into()),
        paired: true,
        ..Header::default()
    };
    let mut writer = recording::RecordingWriter::create(path, &header).unwrap();
    let input = Input::open(&TraceInput::file(trace)).unwrap();
    let trace = format::Trace::open(input, &TraceOptions::default()).unwrap();
    let everything = weir_model::Demand::whole(&trace.content());
    let mut tap = trace.start(&[everything]).unwrap();
    while let event = tap.next(std::time::Duration::ZERO).unwrap()
        && !matches!(event, weir_tap::TapEvent::End)
    {
        if let weir_tap::TapEvent::Rows { batch, .. } = event {
            format::TraceWriter::write(&mut writer, &batch).unwrap();
        }
    }
    let lost = EventCount {
        counter: "events_lost",
        cause: Some("ring_full"),
        device: Some(Symbol::new("/dev/sda")),
        total: lost,
    };
    format::TraceWriter::count(&mut writer, vec![lost]);
    writer.flush_group().unwrap();
    match close {
        true => drop(format::TraceWriter::finish(Box::new(writer)).unwrap()),
        // As after a kill: nothing more is written.
        false => std::mem::forget(writer),
    }
}

#[test]
fn stream_weir_of_a_recording_is_what_it_lost_and_ends() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(50));
    let path = scratch.path().join("r.parquet");
    recorded(&trace, &path, 3, true);
    let from = path.to_str().unwrap();
    let query = "select cause, device, total from weir where counter = 'events_lost'";
    let output = run(&["query", "--from", from, "--format", "csv", query]);
    assert!(output.err.contains("3 missed"), "{}", output.err);
    let out = output.fine();
    assert!(
        out.ends_with(",ring_full,/dev/sda,3\n") && out.lines().count() == 2,
        "{out}"
    );
    // The result has the time of the recording.
    assert!(
        out.lines().last().unwrap().starts_with("2007-02-22T"),
        "{out}"
    );
    let sum = answer(
        &["--from", from],
        "select sum(value) as lost from weir where counter = 'events_lost'",
    );
    assert!(sum.ends_with(",3\n"), "{sum}");
    // Every query of the recording reports its losses.
    let output = run(&[
        "query",
        "--from",
        from,
        "--final",
        "select count(*) from IO",
    ]);
    assert!(
        output.err.contains("3 events lost (ring full) of /dev/sda"),
        "{}",
        output.err
    );
    let output = run(&["characterise", "--from", from]);
    assert!(output.err.contains("3 events lost"), "{}", output.err);

    // Bad records of another trace are detected while it is read.
    let bad = scratch.write("bad.csv", &format!("{}x,y\n", requests(20)));
    let query = "select total from weir where counter = 'bad_records'";
    let out = run(&["query", "--from", &bad, "--format", "csv", query]).fine();
    assert!(out.ends_with(",1\n"), "{out}");
    // They are also detected in a script, and in a recording without rows.
    let script = scratch.write(
        "q",
        "query : select total from weir where counter = \"bad_records\";\n",
    );
    let out = run(&["run", "--from", &bad, &script]).fine();
    assert!(out.ends_with(":+:1\n"), "{out}");
    let empty = scratch.write("empty.csv", "");
    let path = scratch.path().join("none.parquet");
    let none = path.to_str().unwrap();
    run(&["convert", "--from-format", "msr", &empty, none]).fine();
    run(&["query", "--from", none, "select * from weir"]).fine();
}

#[test]
fn a_recording_without_end_is_read_with_a_warning() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(50));
    let path = scratch.path().join("r.parquet");
    let from = path.to_str().unwrap();
    let count = [
        "query",
        "--from",
        from,
        "--final",
        "-v",
        "select count(*) from IO",
    ];
    recorded(&trace, &path, 0, false);
    let output = run(&count);
    assert!(output.err.contains("has no footer"), "{}", output.err);
    assert!(
        output.err.contains("after the first 100 are missing"),
        "{}",
        output.err
    );
    assert!(
        output.err.contains("at most 100 % complete"),
        "{}",
        output.err
    );
    assert!(output.fine().contains("50"));
    // Truncated within a row group.
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&[7; 1_000]).unwrap();
    let output = run(&count);
    assert!(
        output.err.contains("1000 bytes of an incomplete row group"),
        "{}",
        output.err
    );
    // A copy of it is complete, and records its origin.
    let whole = scratch.path().join("whole.parquet");
    let output = run(&["convert", from, whole.to_str().unwrap()]);
    assert!(output.err.contains("has no footer"), "{}", output.err);
    assert_eq!(output.code, 0);
    let output = run(&[
        "query",
        "--from",
        whole.to_str().unwrap(),
        "--final",
        "select count(*) from IO",
    ]);
    assert!(
        output.err.contains("a recording without footer"),
        "{}",
        output.err
    );
    // A recording that was closed is read without a remark.
    recorded(&trace, &path, 0, true);
    let output = run(&[
        "query",
        "--from",
        from,
        "--final",
        "select count(*) from IO",
    ]);
    assert_eq!((output.code, output.err.as_str()), (0, ""));
}

#[test]
fn a_recorder_that_is_killed_leaves_a_recording_without_end() {
    let scratch = Scratch::new();
    let (pipe, path) = (
        scratch.path().join("pipe.csv"),
        scratch.path().join("r.parquet"),
    );
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (from, to) = (pipe.to_str().unwrap(), path.to_str().unwrap());
    let mut recorder = weir(&["record", "--from", from, "-o", to]).spawn().unwrap();
    let mut writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    writer.write_all(requests(1_000).as_bytes()).unwrap();
    let has_footer = || fs::metadata(&path).is_ok_and(|m| m.len() > 1_000);
    while !has_footer() {
        assert!(
            recorder.try_wait().unwrap().is_none(),
            "it records until it is killed"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let output = run(&["query", "--from", to, "--final", "select count(*) from IO"]);
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(output.err.contains("has no footer"), "{}", output.err);
}

/// A recording of stream `sensors`, which is not built into weir: one row per millisecond.
pub fn sensors(path: &Path) {
    let fields = vec![
        Field::new("ts", Type::Time),
        Field::new("sensor", Type::Text).doc("its place"),
        Field::new("written", Type::Int)
            .unit(Unit::Bytes)
            .aliases(&[Alias::in_unit("Blocks", Unit::Sectors)]),
    ];
    let header = Header {
        stream: Declaration::new("sensors", Shape::Stream, Schema::new(fields)),
        ..Header::default()
    };
    let ts: Vec<i64> = (1..=100).map(|ms| ms * 1_000_000).collect();
    let names = (1..=100).map(|i| ["a", "b", "c"][i % 3]);
    let columns = vec![
        Column::ints(ts.clone()),
        Column::texts(names),
        Column::ints((1..=100).map(|i| 512 * i).collect()),
    ];
    let mut writer = recording::RecordingWriter::create(path, &header).unwrap();
    format::TraceWriter::write(&mut writer, &Batch::stream(ts, columns)).unwrap();
    format::TraceWriter::finish(Box::new(writer)).unwrap();
}

#[test]
fn a_recording_is_queried_by_the_stream_that_it_describes() {
    let scratch = Scratch::new();
    let (file, copy, trace) = (
        scratch.file("sensors.parquet"),
        scratch.file("copy.parquet"),
        scratch.write("t.csv", &requests(40)),
    );
    sensors(Path::new(&file));
    let grouped = "select sensor, count(*), max(Blocks) from sensors \
        where written > 25 KiB group by sensor order by 1";
    let expected = "instant,sensor,count(*),max(Blocks)\n\
        1970-01-01T00:00:00.100000000Z,a,17,99\n\
        1970-01-01T00:00:00.100000000Z,b,17,100\n\
        1970-01-01T00:00:00.100000000Z,c,16,98\n";
    let of = |from: &str| answer(&["--from", from], grouped);
    assert_eq!(of(&file), expected);
    let mut command = weir(&[
        "query", "--from", "-", "--final", "--format", "csv", grouped,
    ]);
    command.stdin(fs::File::open(&file).unwrap());
    assert_eq!(
        String::from_utf8(command.output().unwrap().stdout).unwrap(),
        expected
    );
    // A new recording of a part of its rows.
    let some = ["--stream", "Sensors", "--where", "written > 25 KiB"];
    run(&[&["record", "--from", &file, "-o", &copy], &some[..]].concat()).fine();
    assert_eq!(of(&copy), expected);
    let rows = answer(&["--from", &copy], "select count(*) from sensors");
    assert!(rows.ends_with(",50\n"), "{rows}");
    // Together with a trace: each stream is read from the file that contains it.
    let both = ["--from", &file, "--from", &trace];
    assert_eq!(answer(&both, grouped), expected);
    let requests = answer(&both, "select count(*) from IO");
    assert!(requests.ends_with(",40\n"), "{requests}");
    let fails = |args: &[&str], why: &str| {
        let output = run(args);
        assert!(
            output.code > 0 && output.err.contains(why),
            "{}",
            output.err
        );
    };
    fails(
        &["query", "--from", &file, "select op from IO"],
        "has no `IO`",
    );
    fails(&["query", "--from", &trace, grouped], "unknown stream");
    let stream = ["record", "--from", &file, "--stream", "sensor"];
    fails(&stream, "did you mean `sensors`?");
}

#[test]
fn a_source_that_cannot_be_opened_is_reported_with_its_reason() {
    let scratch = Scratch::new();
    let ticks = scratch.write("s.txt", "i,i\n1,5\n2,6\n");
    let script = format!(
        "table : register stream s (a integer);\nsource : {ticks}\nquery : select * from s;\n"
    );
    let script = scratch.write("s.cql", &script);
    let trace = scratch.write("t.csv", &requests(4));
    let (missing, other) = ("/nonexistent/t.csv", scratch.write("x", "no trace"));
    let query = "select op, count(*) from IO group by op";
    for command in [
        &["query", query][..],
        &["explain", query],
        &["record"],
        &["hist"],
    ] {
        for (from, why) in [(missing, "No such file"), (&other, "unknown trace format")] {
            let from = ["--from", &trace, "--from", from];
            let output = run(&[&command[..1], &from, &command[1..]].concat());
            assert_eq!(output.code, 1, "{command:?} {}", output.err);
            assert!(output.err.contains(why), "{command:?} {}", output.err);
        }
    }
    // A script opens the files that it reads.
    let output = run(&["run", "--from", missing, &script]);
    assert_eq!(output.code, 0, "{}", output.err);
    assert_eq!(output.out.lines().count(), 2, "{}", output.out);
}
