//! `weir query` over files.

use crate::support::{Scratch, requests, run};

/// A trace of this many requests, and the directory that contains it.
fn trace(count: usize) -> (Scratch, String) {
    let scratch = Scratch::new();
    let path = scratch.write("trace.csv", &requests(count));
    (scratch, path)
}

#[test]
fn a_pipe_gets_the_deltas_of_a_relation() {
    let (_scratch, trace) = trace(3);
    let out = run(&["query", "--from", &trace, "select count(*) from IO"]).fine();
    let lines: Vec<&str> = out.lines().collect();
    let last = &lines[lines.len() - 2..];
    assert_eq!(
        last,
        [
            "[2007-02-22T17:00:03.002500000Z]:-:2",
            "[2007-02-22T17:00:03.002500000Z]:+:3"
        ],
        "{out}"
    );
}

#[test]
fn the_final_state_is_shown_once_and_in_order() {
    let (_scratch, trace) = trace(100);
    let query = "select op, count(*) as n, avg(latency) as mean, sum(bytes) as b from IO group by op order by n desc";
    let args = [
        "query", "--from", &trace, "--final", "--format", "csv", query,
    ];
    let out = run(&args).fine();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "instant,op,n,mean,b");
    assert!(lines[1].ends_with(",r,75,500000.0,307200"), "{out}");
    assert!(lines[2].ends_with(",w,25,500000.0,204800"), "{out}");
    assert_eq!(lines.len(), 3);

    let out = run(&["query", "--from", &trace, "--format", "table", query]).fine();
    let table = "op   n      mean          b\n\
                 r   75  500.0 us  300.0 KiB\n\
                 w   25  500.0 us  200.0 KiB\n";
    assert_eq!(out, table);

    let raw = [
        "query", "--from", &trace, "--format", "table", "--raw", query,
    ];
    assert!(run(&raw).fine().contains("500000.0  307200"));
}

#[test]
fn a_stream_gives_its_rows_with_their_times() {
    let (_scratch, trace) = trace(8);
    let query = "select op, sector from IO where bytes > 4 KiB";
    let out = run(&["query", "--from", &trace, "--format", "json", query]).fine();
    let rows: Vec<serde_json::Value> = out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["instant"], "2007-02-22T17:00:03.003500000Z");
    assert_eq!(
        (&rows[0]["op"], &rows[0]["sector"]),
        (&"w".into(), &24.into())
    );
}

#[test]
fn files_are_merged_by_time() {
    let scratch = Scratch::new();
    let all = requests(200);
    let (mut even, mut odd) = (String::new(), String::new());
    for (i, line) in all.lines().enumerate() {
        let part = if i % 2 == 0 { &mut even } else { &mut odd };
        part.push_str(line);
        part.push('\n');
    }
    let (even, odd) = (
        scratch.write("even.csv", &even),
        scratch.write("odd.csv", &odd),
    );
    let whole = scratch.write("whole.csv", &all);
    let query = "select ts, sector, count(*) as n from IO [rows 3] group by ts, sector";
    let merged = run(&["query", "--from", &even, "--from", &odd, query]).fine();
    assert_eq!(merged, run(&["query", "--from", &whole, query]).fine());
    assert!(merged.lines().count() > 390);
}

#[test]
fn for_takes_the_first_part_of_a_file() {
    let (_scratch, trace) = trace(100);
    let query = "select count(*) from IOstream where type = 'Q'";
    let args = [
        "query", "--from", &trace, "--for", "10ms", "--final", "--format", "csv", query,
    ];
    let out = run(&args).fine();
    assert!(out.ends_with(",10\n"), "{out}");
}

#[test]
fn answers_go_to_a_file_in_the_format_of_its_name() {
    let (scratch, trace) = trace(4);
    let file = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    for name in ["a.csv", "a.json", "a.parquet"] {
        run(&[
            "query",
            "--from",
            &trace,
            "-o",
            &file(name),
            "select op from IO",
        ])
        .fine();
    }
    assert!(scratch.read("a.csv").starts_with("instant,op\n"));
    assert!(scratch.read("a.json").starts_with("{\"instant\":"));
    let parquet = std::fs::read(scratch.path().join("a.parquet")).unwrap();
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
}

#[test]
fn invalid_records_are_reported_and_strict_stops_at_them() {
    let scratch = Scratch::new();
    let mut lines = requests(5);
    lines.insert_str(0, &requests(1));
    lines.push_str("128166372040000000,vm1,0,Read,x,4096,5000\n");
    let trace = scratch.write("bad.csv", &lines);
    let query = [
        "query",
        "--from",
        &trace,
        "--final",
        "--format",
        "csv",
        "select count(*) from IO",
    ];
    let output = run(&query);
    assert!(output.err.contains("1 bad records"), "{}", output.err);
    assert!(
        output.err.contains(&format!("{trace}: offset ")),
        "{}",
        output.err
    );
    assert!(output.fine().ends_with(",6\n"));

    let output = run(&[&query[..], &["--strict"]].concat());
    assert_eq!(output.code, 1);
    assert!(
        output.err.contains(&format!("{trace}: offset ")),
        "{}",
        output.err
    );
}

#[test]
fn a_failed_query_reports_it_after_its_earlier_results() {
    let (_scratch, trace) = trace(10);
    let query = "select sector * 1000000000000 * 1000000 as x from IO";
    let output = run(&["query", "--from", &trace, "--format", "csv", query]);
    assert_eq!(output.code, 1);
    assert!(
        output.err.contains("weir: the query failed: "),
        "{}",
        output.err
    );
    assert!(output.out.starts_with("instant,x\n"), "{}", output.out);
}

#[test]
fn a_query_over_its_memory_ends_with_a_diagnostic() {
    let (_scratch, trace) = trace(2_000);
    let query = "select ts, sector, count(*) from IO group by ts, sector";
    let output = run(&["query", "--from", &trace, "--limit-memory", "20k", query]);
    assert_eq!(output.code, 1);
    assert!(
        output.err.contains("weir: the query failed: "),
        "{}",
        output.err
    );
}

#[test]
fn stream_weir_has_the_counters_of_weir() {
    let (_scratch, trace) = trace(50);
    let query = "select w.counter, w.total, count(*) as n from weir as w, IO [rows 1] as i where w.place = 'tap' group by w.counter, w.total";
    let args = [
        "query", "--from", &trace, "--final", "--format", "csv", query,
    ];
    let out = run(&args).fine();
    assert!(out.lines().any(|l| l.contains(",events_in,100,")), "{out}");
}

/// The number at the end of a line.
fn last_number(line: &str) -> i64 {
    let number = line.rsplit([',', ':']).next().unwrap_or_default();
    number.parse().unwrap_or_else(|_| panic!("{line}"))
}

/// The trace has one request per millisecond, starting at a whole second, so 2,500 of them end half
/// a second after a whole one.
#[test]
fn the_slide_in_which_a_recording_ends_is_shown_and_marked() {
    let (_scratch, trace) = trace(2_500);
    let query = "select count(*) from IO [range 1 s slide 1 s] group by op having op = 'r'";
    let window = "Istream(select max(ts) as t, count(*) as n from IO [range 1 s slide 1 s])";
    let csv = run(&["query", "--from", &trace, "--format", "csv", window]);
    assert!(
        csv.err.contains("the last slide is incomplete: it covers"),
        "{}",
        csv.err
    );
    assert!(csv.err.contains("of 1s"), "{}", csv.err);
    let counted: i64 = csv.fine().lines().skip(1).map(last_number).sum();
    assert_eq!(counted, 2_500);

    for rest in [&[][..], &["--final"]] {
        let args = ["query", "--from", &trace, "--format", "json", query];
        let out = run(&[&args[..], rest].concat()).fine();
        let last: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        let marked = &last["incomplete"];
        assert_eq!(marked["of"], 1_000_000_000, "{out}");
        let covers = marked["covers"].as_i64().unwrap();
        assert!((1..1_000_000_000).contains(&covers), "{out}");
        if rest.is_empty() {
            let first = out.lines().next().unwrap();
            assert!(!first.contains("incomplete"), "{out}");
        }
    }

    // The result of a window without slide is complete after the last row.
    let plain = run(&[
        "query",
        "--from",
        &trace,
        "--final",
        "select count(*) from IO",
    ]);
    assert_eq!(plain.err, "");
}

#[test]
fn an_aggregate_over_no_rows_is_sqls_row() {
    let (scratch, trace) = trace(3);
    let nothing = "select count(*) as n, sum(bytes) as b from IO where sectors > 1000000";
    let args = ["query", "--from", &trace, "--format", "csv"];
    let last = run(&[&args[..], &["--final", nothing]].concat()).fine();
    assert!(last.ends_with(",0,\n"), "{last}");
    let deltas = run(&["query", "--from", &trace, nothing]).fine();
    assert_eq!(deltas.lines().count(), 1, "{deltas}");
    assert!(deltas.ends_with(":+:0, NULL\n"), "{deltas}");
    for window in ["[range 1 s]", "[range 1 s slide 1 s]", "[rows 5]", "[now]"] {
        let query = nothing.replace("from IO", &format!("from IO {window}"));
        let last = run(&[&args[..], &["--final", &query]].concat()).fine();
        assert!(last.ends_with(",0,\n"), "{window}: {last}");
    }
    let grouped = format!("{nothing} group by op");
    let none = run(&[&args[..], &["--final", &grouped]].concat()).fine();
    assert_eq!(none.lines().count(), 1, "only the header: {none}");

    // A recording without rows has no instant; the row of the aggregate exists nevertheless.
    let empty = scratch.write("empty.csv", "");
    let args = ["query", "--from", &empty, "--from-format", "msr"];
    let args = [&args[..], &["--final", "--format", "csv", nothing]].concat();
    assert!(run(&args).fine().ends_with(",0,\n"));
}

#[test]
fn operations_have_long_names_too() {
    let (_scratch, trace) = trace(100);
    let count = |condition: &str| {
        let query = format!("select count(*) from IO where {condition}");
        let output = run(&[
            "query", "--from", &trace, "--final", "--format", "csv", &query,
        ]);
        (last_number(output.out.lines().last().unwrap()), output.err)
    };
    for (short, long) in [
        ("op = 'r'", "op = 'read'"),
        ("op = 'w'", "'Write' = op"),
        ("op <> 'r'", "op <> 'read'"),
        ("op in ('r', 'd')", "op in ('read', 'discard')"),
        (
            "not op = 'r'",
            "case op when 'read' then false else true end",
        ),
        ("level = 'vdisk'", "level in ('VDisk')"),
    ] {
        assert_eq!(count(long), count(short), "{long}");
        assert!(count(short).0 > 0, "{short}");
    }
    let (none, warning) = count("op = 'reed'");
    assert_eq!(none, 0);
    assert!(warning.contains("did you mean 'read'?"), "{warning}");
    let (_, warning) = count("op = 'x'");
    assert!(warning.contains("'r' (read), 'w' (write)"), "{warning}");
}

#[test]
fn a_long_flat_list_of_conditions_is_not_nested() {
    let (_scratch, trace) = trace(50);
    for (joined, each) in [(" or ", "sector = "), (" and ", "sector <> ")] {
        for length in [128, 5_000] {
            let all: Vec<String> = (0..length).map(|i| format!("{each}{i}")).collect();
            let query = format!("select count(*) from IO where {}", all.join(joined));
            let output = run(&[
                "query", "--from", &trace, "--final", "--format", "csv", &query,
            ]);
            let count = last_number(output.fine().lines().last().unwrap());
            // Each request begins 8 sectors after the start of the previous one.
            let hit = (0..50).filter(|i| i * 8 < length).count() as i64;
            assert_eq!(count, if joined == " or " { hit } else { 50 - hit });
        }
    }
}

#[test]
fn a_point_in_time_is_cast_to_iso_8601() {
    let (_scratch, trace) = trace(1);
    let query =
        "select cast(ts as text), 'at ' || ts, cast(cast(ts as text) as timestamp) = ts from IO";
    let out = run(&["query", "--from", &trace, "--format", "csv", query]).fine();
    let instant = "2007-02-22T17:00:03.000500000Z";
    assert!(
        out.ends_with(&format!(",{instant},at {instant},true\n")),
        "{out}"
    );
}

#[test]
fn watch_ends_with_the_first_row() {
    let (_scratch, trace) = trace(3);
    let watch = |query| run(&["watch", "--from", &trace, "--format", "csv", query]);
    let out = watch("select op, count(*) as n from IO group by op having count(*) >= 2").fine();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    assert_eq!(lines[0], "instant,op,n");
    assert!(lines[1].ends_with(",r,2"), "{out}");

    let none = watch("select op from IO where latency > 1 h");
    assert_eq!(none.code, 1);
    assert!(
        none.err.contains("weir: the query has no row"),
        "{}",
        none.err
    );
}
