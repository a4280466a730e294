//! `weir record` and `weir convert`: the output has the content of the input.

use crate::support::{Scratch, requests, run, shared};

#[test]
fn a_recording_answers_as_the_trace_does() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(500));
    let recording = scratch.path().join("r.parquet");
    let recording = recording.to_str().unwrap();
    run(&["record", "--from", &trace, "-o", recording]).fine();
    for query in [
        "select * from IO",
        "select type, op, count(*), avg(sectors) from IOstream [rows 10] group by type, op",
    ] {
        let of = |from: &str| run(&["query", "--from", from, query]).fine();
        assert_eq!(of(recording), of(&trace), "{query}");
    }
}

#[test]
fn a_recording_is_never_overwritten_unasked() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(5));
    let there = scratch.write("r.parquet", "precious");
    let output = run(&["record", "--from", &trace, "-o", &there]);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("--force"), "{}", output.err);
    assert_eq!(scratch.read("r.parquet"), "precious");
    run(&["record", "--from", &trace, "-o", &there, "--force"]).fine();
    assert!(std::fs::read(&there).unwrap().starts_with(b"PAR1"));
}

#[test]
fn what_is_read_is_never_written_over() {
    let scratch = Scratch::new();
    let content = requests(5);
    let trace = scratch.write("t.csv", &content);
    let recording = scratch.path().join("r.parquet");
    let recording = recording.to_str().unwrap();
    run(&["record", "--from", &trace, "-o", recording]).fine();
    let script = scratch.write(
        "q",
        &format!("query : select * from IOstream;\ndest : {trace}\n"),
    );
    for args in [
        &["query", "--from", &trace, "-o", &trace, "select op from IO"][..],
        &["record", "--from", recording, "-o", recording, "--force"],
        &["convert", recording, recording, "--force"],
        &["run", "--from", &trace, &script],
    ] {
        let output = run(args);
        assert_eq!(output.code, 2, "{args:?} {}", output.err);
        assert!(output.err.contains("use another file"), "{}", output.err);
    }
    assert_eq!(scratch.read("t.csv"), content);
    run(&["query", "--from", recording, "select op from IO"]).fine();
}

#[test]
fn a_recording_can_keep_a_part() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(100));
    let recording = scratch.path().join("w.parquet");
    let recording = recording.to_str().unwrap();
    run(&[
        "record", "--from", &trace, "-o", recording, "--where", "op = 'w'",
    ])
    .fine();
    let query = "select op, count(*) as n from IO group by op";
    let args = [
        "query", "--from", recording, "--final", "--format", "csv", query,
    ];
    let out = run(&args).fine();
    assert!(
        out.ends_with(",w,25\n") && out.lines().count() == 2,
        "{out}"
    );

    let output = run(&[
        "record",
        "--from",
        &trace,
        "-o",
        recording,
        "--force",
        "--where",
        "colour = 1",
    ]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("`colour`"), "{}", output.err);
}

#[test]
fn traces_are_converted() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(200));
    let query = "select op, count(*) as n, sum(bytes) as b, avg(latency) as l from IO group by op";
    let answer = |from: &str| run(&["query", "--from", from, "--format", "table", query]).fine();
    for name in ["t.parquet", "t.blktrace.0"] {
        let out = scratch.path().join(name);
        let out = out.to_str().unwrap();
        run(&["convert", &trace, out]).fine();
        assert_eq!(answer(out), answer(&trace), "{name}");
    }
}

#[test]
fn a_real_trace_gives_the_numbers_that_its_authors_counted() {
    let name = "a_real_trace_gives_the_numbers_that_its_authors_counted";
    let Some(folder) = shared(name, "cloudphysics") else {
        return;
    };
    let mut files = std::fs::read_dir(folder)
        .unwrap()
        .map(|f| f.unwrap().path());
    let trace = files.find(|f| f.extension().is_some_and(|e| e == "vscsi"));
    let trace = trace.expect("the folder holds a .vscsi trace");
    let query =
        "select op, count(*) as n, sum(bytes) as b from IOstream where type = 'Q' group by op";
    let from = ["query", "--from", trace.to_str().unwrap()];
    let args = [&from[..], &["--final", "--format", "json", query]].concat();
    let out = run(&args).fine();
    let rows = out
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    let rows: Vec<_> = rows.collect();
    let count = |op: &str| {
        rows.iter().find(|r| r["op"] == op).unwrap()["n"]
            .as_i64()
            .unwrap()
    };
    assert_eq!((count("r"), count("w"), rows.len()), (46_974, 66_898, 2));
    let bytes: i64 = rows.iter().map(|r| r["b"].as_i64().unwrap()).sum();
    assert_eq!(bytes, 4_205_978_112);
}
