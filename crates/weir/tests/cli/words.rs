//! Usage errors: diagnostics, remedies and exit code 2.

use crate::support::{Scratch, run, weir};

#[test]
fn all_errors_of_a_query_are_reported_with_an_excerpt() {
    let output = run(&["query", "select avrg(latency), colour from IO"]);
    assert_eq!((output.code, output.out.as_str()), (2, ""));
    assert!(output.err.contains("error[W0103]"), "{}", output.err);
    assert!(output.err.contains("did you mean `avg`?"), "{}", output.err);
    assert!(output.err.contains("^^^^"), "{}", output.err);
    assert!(output.err.contains("`colour`"), "{}", output.err);
}

#[test]
fn check_reports_errors_without_running() {
    let output = run(&["check", "select count(*) from IO where latency > 4 KiB"]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("error[W0301]"), "{}", output.err);

    let output = run(&["check", "--json", "select nope from IO"]);
    let answer: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((output.code, &answer["ok"]), (2, &false.into()));
    assert_eq!(answer["diagnostics"][0]["code"], "W0102");
    assert_eq!(answer["diagnostics"][0]["start"], 7);

    let out = run(&[
        "check",
        "select op, avg(latency) as mean from IO group by op",
    ])
    .fine();
    assert!(
        out.contains("mean") && out.contains("float") && out.contains("ns"),
        "{out}"
    );
}

#[test]
fn streams_of_the_kernel_are_listed_and_checked() {
    let list = run(&["streams"]).fine();
    for name in ["IO", "FileIO", "IOpath", "PageCache"] {
        let is_it = |line: &str| line.split_whitespace().next() == Some(name);
        assert!(list.lines().any(is_it), "{name} in {list}");
        let columns = run(&["streams", name]).fine();
        assert!(columns.contains("COLUMN"), "{columns}");
        let query = format!("select op, count(*) as n from {name} group by op");
        let columns = run(&["check", &query]).fine();
        assert!(columns.contains("integer"), "{columns}");
    }
}

#[test]
fn a_query_can_come_from_a_file_or_standard_input() {
    let scratch = Scratch::new();
    let file = scratch.write("q.cql", "select count(*)\nfrom IOO");
    let output = run(&["check", "-f", &file]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains(&format!("{file}:2:")), "{}", output.err);

    let input = std::fs::File::open(&file).unwrap();
    let output = weir(&["check", "-"]).stdin(input).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.write("q.cql", "");
    std::fs::write(&file, b"select \xff").unwrap();
    let output = run(&["check", "-f", &file]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("not UTF-8 at byte 7"), "{}", output.err);
}

#[test]
fn a_missing_file_is_the_worlds_fault() {
    for args in [
        &["query", "--from", "/no/such/trace", "select * from IO"][..],
        &["query", "-f", "/no/such/query"],
        &["run", "/no/such/script"],
        &["convert", "/no/such/trace", "/tmp/x.parquet"],
    ] {
        let output = run(args);
        assert_eq!(output.code, 1, "{args:?} {}", output.err);
        assert!(output.err.starts_with("weir: /no/such/"), "{}", output.err);
    }
}

#[test]
fn options_that_do_not_exist_are_refused() {
    for args in [
        &["query", "--format", "xml", "select * from IO"][..],
        &["query", "--for", "soon", "select * from IO"],
        &["query", "--limit-memory", "much", "select * from IO"],
        &["frobnicate"],
    ] {
        assert_eq!(run(args).code, 2, "{args:?}");
    }
}

#[test]
fn a_stream_has_no_final_state() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &crate::support::requests(3));
    let args = [
        "query",
        "--from",
        &trace,
        "--final",
        "--format",
        "csv",
        "istream(select op from IO)",
    ];
    let output = run(&args);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("--final"), "{}", output.err);
}
