//! The end of a command: by a signal, by time, by a closed pipe. The output is valid each time.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::support::{Scratch, interrupt, requests, run, skipped, weir};

/// Stream `weir` needs no privileges and never ends.
const ENDLESS: &str = "select * from weir";

#[test]
fn json_is_valid_after_an_interrupt() {
    let mut command = weir(&["query", "--format", "json", ENDLESS]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    out.read_line(&mut text).unwrap();
    interrupt(&child);
    out.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(row["counter"].is_string(), "{line}");
    }
}

#[test]
fn time_ends_it_well() {
    let output = run(&["query", "--for", "1500ms", "--format", "csv", ENDLESS]);
    assert!(output.fine().lines().count() > 1);
}

#[test]
fn a_reader_that_went_away_is_no_failure() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(50_000));
    for format in ["json", "csv", "delta", "table", "stream"] {
        let args = [
            "query",
            "--from",
            &trace,
            "--format",
            format,
            "select * from IO",
        ];
        let mut command = weir(&args);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 1];
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut first).unwrap();
        drop(out);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{format}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{format}");
    }
}

#[test]
fn a_disk_that_is_full_is_a_failure() {
    let full = "/dev/full";
    if !std::path::Path::new(full).exists() {
        return skipped("a_disk_that_is_full_is_a_failure", format!("no {full}"));
    }
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(100));
    for format in ["json", "csv", "arrow", "parquet"] {
        let output = run(&[
            "query",
            "--from",
            &trace,
            "--format",
            format,
            "-o",
            full,
            "select op from IO",
        ]);
        assert_eq!(output.code, 1, "{format}");
        assert!(
            output.err.starts_with("weir: /dev/full: "),
            "{format}: {}",
            output.err
        );
    }
}

#[test]
fn a_closed_standard_output_is_a_failure() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(3));
    let query = format!("query --from {trace} --final 'select count(*) from IO'");
    let closed = |args: &str| {
        let line = format!("exec '{}' {args} >&-", env!("CARGO_BIN_EXE_weir"));
        let output = std::process::Command::new("sh")
            .args(["-c", &line])
            .output();
        crate::support::CommandOutput::of(output.unwrap())
    };
    for args in [
        query.as_str(),
        "streams",
        "doctor --json",
        "iostat --from /proc",
    ] {
        let output = closed(args);
        assert_eq!(output.code, 1, "{args}: {}", output.err);
        assert!(
            output.err.contains("standard output is closed"),
            "{args}: {}",
            output.err
        );
    }
    // Output to a file does not need standard output.
    let file = scratch.path().join("answer.csv");
    let output = closed(&format!("{query} -o {}", file.display()));
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(scratch.read("answer.csv").ends_with(",3\n"));
}
