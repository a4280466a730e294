//! Traces from pipes: the result for standard input and FIFOs equals that for a file with the same
//! bytes.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use weir_tap::format::FORMATS;
use weir_testing::trace::trace;

use crate::support::{CommandOutput, Scratch, interrupt, requests, run, run_in, weir};

/// The capacity of a pipe (pipe(7)): a larger write waits for the reader.
const PIPE_BYTES: usize = 64 << 10;

/// Requests of a trace, which exceeds the capacity of a pipe in every format.
pub const REQUESTS: u64 = 4_500;

/// The number of requests of the recording, whose requests take a fraction of the bytes.
pub const REQUESTS_RECORDED: u64 = 6 * REQUESTS;

/// The names of standard input.
const STANDARD_INPUT: [&str; 2] = ["-", "/dev/stdin"];

/// Runs the binary to its end with `bytes` on its standard input, through a pipe.
pub fn piped(args: &[&str], bytes: &[u8]) -> CommandOutput {
    let mut command = weir(args);
    command.stdin(Stdio::piped());
    fed(command, bytes)
}

/// Runs a command whose standard input is a pipe to its end.
fn fed(mut command: Command, bytes: &[u8]) -> CommandOutput {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    // A command that rejects the trace does not read it to its end.
    let writer = thread::spawn(move || drop(input.write_all(&bytes)));
    let output = CommandOutput::of(child.wait_with_output().unwrap());
    writer.join().unwrap();
    output
}

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// A FIFO into which a thread writes `bytes` once.
fn fifo(path: &Path, bytes: &[u8]) -> thread::JoinHandle<()> {
    make_fifo(path);
    let (path, bytes) = (path.to_path_buf(), bytes.to_vec());
    thread::spawn(move || fs::write(path, bytes).unwrap())
}

/// Requests at sectors that do not compress, as an MSR Cambridge trace.
fn scattered(count: u64) -> String {
    let line = |i: u64| {
        let ticks = 128_166_372_030_000_000 + 10_000 * i;
        let place = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let latency = 1_000 + place % 99_000;
        format!("{ticks},vm1,0,Read,{},4096,{latency}\n", place & !511)
    };
    (0..count).map(line).collect()
}

/// A trace in a format, at a path whose file is called `stdin`, since a disk without another name
/// is named after the file.
pub fn specimen(format: &str, scratch: &Scratch) -> String {
    let converted = |name: &str, requests: u64| {
        let from = scratch.write("from.csv", &scattered(requests));
        let path = scratch.path().join(name);
        run(&["convert", &from, path.to_str().unwrap()]).fine();
        path
    };
    let path = match format {
        "recording" => converted("stdin.parquet", REQUESTS_RECORDED),
        "blktrace" => converted("stdin.blktrace.0", REQUESTS),
        "iolog" => converted("stdin.iolog", REQUESTS),
        format => {
            let path = scratch.path().join("stdin.trace");
            fs::write(&path, trace(format, REQUESTS).unwrap()).unwrap();
            path
        }
    };
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_format_gives_every_row_through_every_kind_of_pipe() {
    let query =
        "select ts, type, op, req_id, sector, sectors, vm, vdisk, pdisk, pid, error from IOstream";
    for format in FORMATS {
        let scratch = Scratch::new();
        let file = specimen(format.name, &scratch);
        let bytes = fs::read(&file).unwrap();
        assert!(bytes.len() > PIPE_BYTES, "{}: {}", format.name, bytes.len());
        let args = |from: &str, named: bool| {
            let words = ["query", "--from", from, "--format", "csv", query];
            let mut args: Vec<String> = words.map(String::from).to_vec();
            if named {
                args.extend(["--from-format".to_owned(), format.name.to_owned()]);
            }
            args
        };
        let of_file = run(&refs(&args(&file, false))).fine();
        assert!(
            of_file.lines().count() > REQUESTS as usize,
            "{}",
            format.name
        );
        let check = |output: CommandOutput, way: &str| {
            assert_eq!(output.code, 0, "{} {way}: {}", format.name, output.err);
            let copied = output.err.contains("copied to a temporary file");
            assert_eq!(copied, format.name == "recording", "{}", output.err);
            assert!(!output.err.contains("missed"), "{}", output.err);
            assert!(output.out == of_file, "{} {way}", format.name);
        };
        for (name, named) in [("-", false), ("-", true), ("/dev/stdin", false)] {
            check(piped(&refs(&args(name, named)), &bytes), name);
        }
        let folder = scratch.path().join("fifo");
        fs::create_dir(&folder).unwrap();
        let path = folder.join(Path::new(&file).file_name().unwrap());
        let writer = fifo(&path, &bytes);
        check(run(&refs(&args(path.to_str().unwrap(), false))), "FIFO");
        writer.join().unwrap();
    }
}

fn refs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// The arguments of a command with the source after its name.
fn with_source<'a>(args: &[&'a str], from: &'a str) -> Vec<&'a str> {
    [&args[..1], &["--from", from], &args[1..]].concat()
}

#[test]
fn every_command_reads_a_pipe_as_a_file() {
    let scratch = Scratch::new();
    let text = scattered(2_000);
    let file = scratch.write("stdin.csv", &text);
    let grouped = "select op, count(*), avg(latency) from IO group by op";
    let paired = "select q.req_id, r.ts - q.ts from IOstream [range 1 s] as q, \
        IOstream [range 1 s] as r where q.type = 'Q' and r.type = 'R' and q.req_id = r.req_id";
    for args in [
        &["query", "--format", "csv", grouped][..],
        &["query", "--format", "csv", paired],
        &["query", "--final", "--format", "csv", grouped],
        &["hist"],
        &["hist", "--json"],
        &["characterise", "--json"],
        &["correlate", "--json"],
        &["advise", "--json"],
        &["top", "-b", "--json"],
        &["iostat", "-x", "1"],
        &["explain", "select op from IO where op = 'r'"],
    ] {
        let of_file = run(&with_source(args, &file)).fine().replace(&file, "FROM");
        assert!(of_file.lines().count() > 0, "{args:?}");
        for name in STANDARD_INPUT {
            let stdout = piped(&with_source(args, name), text.as_bytes()).fine();
            let stdout = stdout.replace(&format!("\"{name}\""), "\"FROM\"");
            assert_eq!(stdout, of_file, "{args:?} {name}");
        }
    }
    let analyzed = ["explain", "--analyze", "--from", "-", grouped];
    let stdout = piped(&analyzed, text.as_bytes()).fine();
    assert!(stdout.contains("2000"), "{stdout}");
    let selecting = "select count(*) from IO where op = 'r'";
    for fleet in [&[][..], &["--fleet"]] {
        let args = [&["explain", "--from", &file], fleet, &[selecting]].concat();
        let plan = run(&args).fine();
        assert!(
            plan.contains("-> reader") && !plan.contains("-> kernel"),
            "{plan}"
        );
    }
}

#[test]
fn a_pipe_is_recorded_and_converted_whole() {
    let scratch = Scratch::new();
    let text = scattered(3_000);
    let file = scratch.write("stdin.csv", &text);
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let rows = |from: &str| {
        run(&[
            "query",
            "--from",
            from,
            "--format",
            "csv",
            "select * from IO",
        ])
        .fine()
    };
    let expected = rows(&file);
    let (recorded, converted) = (path("recorded.parquet"), path("converted.parquet"));
    piped(&["record", "--from", "-", "-o", &recorded], text.as_bytes()).fine();
    assert_eq!(rows(&recorded), expected);
    piped(&["convert", "-", &converted], text.as_bytes()).fine();
    assert_eq!(rows(&converted), expected);
    // Joins on both are computed from pairs, as on the file.
    for recording in [recorded, converted] {
        let query = "select r.ts - q.ts from IOstream [range 10 ms] as q, IOstream [range 10 ms] as r \
            where q.type = 'Q' and r.type = 'R' and q.req_id = r.req_id";
        let plan = run(&["explain", "--from", &recording, query]).fine();
        assert!(plan.contains("computed from the tap's pairs"), "{plan}");
        assert!(!plan.contains("not computed from"), "{plan}");
    }
}

#[test]
fn saved_histograms_come_through_a_pipe() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(500));
    let saved = run(&["hist", "--from", &trace, "--json"]).fine();
    let file = scratch.write("saved.json", &saved);
    let shown = run(&["hist", "--from", &file]).fine();
    assert_eq!(
        piped(&["hist", "--from", "-"], saved.as_bytes()).fine(),
        shown
    );
}

#[test]
fn a_script_reads_pipes() {
    let scratch = Scratch::new();
    let text = requests(2_000);
    scratch.write("t.csv", &text);
    let of_trace = |source: &str| {
        format!(
            "table : register stream S (BlktapTS integer, Type char(1), ReqId integer);\n\
             source : {source}\n\
             query : select R.ReqId, R.BlktapTS - Q.BlktapTS \
             from S [range 3000000 second] as Q, S [range 3000000 second] as R \
             where Q.Type = \"Q\" and R.Type = \"R\" and Q.ReqId = R.ReqId;\n"
        )
    };
    let run_script = |script: &str, bytes: &[u8]| {
        scratch.write("script", script);
        let mut command = weir(&["run", "script"]);
        command.current_dir(scratch.path()).stdin(Stdio::piped());
        fed(command, bytes).fine()
    };
    let of_file = run_script(&of_trace("t.csv"), b"");
    assert!(of_file.lines().count() >= 2_000, "{of_file}");
    for name in STANDARD_INPUT {
        assert_eq!(run_script(&of_trace(name), text.as_bytes()), of_file);
    }
    let rows: String = (1..20_000).map(|i| format!("{i},{i}\n")).collect();
    let ticks = format!("i,i\n{rows}");
    assert!(ticks.len() > PIPE_BYTES);
    let of_ticks = |source: &str| {
        format!(
            "table : register stream S (A integer);\nsource : {source}\n\
             query : select * from S;\n"
        )
    };
    for name in STANDARD_INPUT {
        let out = run_script(&of_ticks(name), ticks.as_bytes());
        assert_eq!(out.lines().count(), 19_999);
    }
    let writer = fifo(&scratch.path().join("pipe"), ticks.as_bytes());
    assert_eq!(run_script(&of_ticks("pipe"), b"").lines().count(), 19_999);
    writer.join().unwrap();
}

#[test]
fn a_pipe_that_is_needed_twice_is_refused_with_the_remedy() {
    let text = requests(10);
    let query = "select count(*) from IO";
    let output = piped(&["query", "--from", "-", "-"], query.as_bytes());
    assert_eq!(output.code, 1, "{}", output.err);
    assert!(
        output.err.contains("is already used for the query"),
        "{}",
        output.err
    );
    let script = "query : select * from IOstream;\n";
    let output = piped(&["run", "--from", "/dev/stdin", "-"], script.as_bytes());
    assert_eq!(output.code, 1, "{}", output.err);
    assert!(
        output.err.contains("is already used for the query"),
        "{}",
        output.err
    );
    // The trace is read once for each placement that is measured.
    let output = piped(
        &[
            "explain",
            "--fleet",
            "--analyze",
            "--from",
            "-",
            "select op, count(*) from IO [range 1 s slide 1 s] group by op",
        ],
        text.as_bytes(),
    );
    assert_eq!(output.code, 1, "{} {}", output.out, output.err);
    assert!(output.err.contains("to a file first"), "{}", output.err);
}

#[test]
fn standard_input_that_is_a_file_needs_no_copy() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(50));
    let path = scratch.path().join("t.parquet");
    run(&["convert", &trace, path.to_str().unwrap()]).fine();
    let mut command = weir(&["query", "--from", "-", "--final", "select count(*) from IO"]);
    command.stdin(fs::File::open(&path).unwrap());
    let output = CommandOutput::of(command.output().unwrap());
    assert!(output.err.is_empty(), "{}", output.err);
    assert!(output.fine().contains("50"));
}

#[test]
fn a_recording_larger_than_the_spool_limit_is_refused() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &scattered(5_000));
    let path = scratch.path().join("t.parquet");
    run(&["convert", &trace, path.to_str().unwrap()]).fine();
    let bytes = fs::read(&path).unwrap();
    let query = "select count(*) from IO";
    let limit = (bytes.len() - 1).to_string();
    let args = ["query", "--spool-limit", &limit, "--from", "-", query];
    let output = piped(&args, &bytes);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("--spool-limit"), "{}", output.err);
    let limit = bytes.len().to_string();
    let args = [
        "query",
        "--final",
        "--spool-limit",
        &limit,
        "--from",
        "-",
        query,
    ];
    assert!(piped(&args, &bytes).fine().contains("5000"));
}

#[test]
fn a_pipe_whose_writer_is_silent_is_left_on_a_signal() {
    let scratch = Scratch::new();
    let path = scratch.path().join("pipe.csv");
    make_fifo(&path);
    let args = ["query", "--format", "csv", "--from", path.to_str().unwrap()];
    let args = [&args[..], &["select req_id from IO"]].concat();
    let mut command = weir(&args);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // More rows than the source holds back to sort them.
    writer.write_all(requests(60_000).as_bytes()).unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    interrupt(&child);
    let rest: Vec<String> = out.lines().map(Result::unwrap).collect();
    assert!(
        rest.iter()
            .all(|line| line.ends_with(|c: char| c.is_ascii_digit()))
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(writer);
}

#[test]
fn an_agent_takes_no_pipe() {
    let scratch = Scratch::new();
    let pipe = scratch.path().join("pipe");
    make_fifo(&pipe);
    let output = run_in(
        scratch.path(),
        &["agent", "--monitor", "127.0.0.1:1", "--from", "pipe"],
    );
    assert_eq!(output.code, 2, "{}", output.err);
    assert!(output.err.contains("write it to a file"), "{}", output.err);
}
