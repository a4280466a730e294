//! `weir watch --monitor` ends with the first row of the fleet.

use std::process::Child;

use super::processes::{Monitor, dealt, ended, until};
use crate::support::{CommandOutput, interrupt, run};

/// A relation that has its first row with the request that is number 200 of the reads, and no
/// other row.
const READS: &str = "select op, count(*) as n from IO group by op having count(*) = 200";

/// The formats that are text.
const FORMATS: [&str; 5] = ["table", "delta", "json", "csv", "csv-safe"];

fn watch(format: &str, query: &str) -> [String; 4] {
    ["watch", "--format", format, query].map(str::to_owned)
}

/// Starts a watch at the monitor.
fn begin(monitor: &Monitor, args: &[String]) -> Child {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    monitor.begin(&args)
}

/// The output without the digits of instants, which the replay moves to the present.
fn without_instants(text: &str) -> String {
    let without_digits = |word: &str| word.replace(|c: char| c.is_ascii_digit(), "");
    let is_instant = |word: &&str| word.matches(':').count() >= 2;
    let words = text
        .split([' ', ',', '"', '\n'])
        .filter(|word| !word.is_empty());
    let word = |word| match is_instant(&word) {
        true => without_digits(word),
        false => word.to_owned(),
    };
    words.map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn watch_prints_the_row_of_a_fleet_that_one_host_has_in_every_format() {
    let monitor = Monitor::configured("[limits]\nqueries_per_client = 20\n");
    let (all, parts) = dealt(&monitor.home, 400);
    let file = monitor.home.path().join("row.parquet");
    let to_file = ["watch", "-o", file.to_str().unwrap(), READS].map(str::to_owned);
    let in_formats = FORMATS.map(|format| begin(&monitor, &watch(format, READS)));
    let in_file = begin(&monitor, &to_file);
    let stream = "select sector, op, bytes from IO where sector = 8 * 300";
    let of_stream = begin(&monitor, &watch("csv", stream));
    until("all are placed", || monitor.queries().len() == 7);
    let _agents = monitor.agents(&parts);

    for (format, fleet) in FORMATS.iter().zip(in_formats) {
        let fleet = ended(fleet);
        assert_eq!(fleet.code, 0, "{format}: {}", fleet.err);
        let here = run(&["watch", "--format", format, "--from", &all, READS]).fine();
        let outputs = [&fleet.out, &here].map(|text| without_instants(text));
        assert_eq!(outputs[0], outputs[1], "{format}");
        assert!(outputs[0].contains("200"), "{format}: {}", fleet.out);
    }
    let in_file = ended(in_file);
    assert_eq!(in_file.code, 0, "{}", in_file.err);
    let bytes = std::fs::read(&file).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    // Request 300 of the trace is a read of 4 KiB, at 300 times that size.
    let of_stream = ended(of_stream);
    let lines: Vec<&str> = of_stream.out.lines().collect();
    assert_eq!((of_stream.code, lines.len()), (0, 2), "{}", of_stream.err);
    assert!(lines[1].ends_with(",2400,r,4096"), "{}", of_stream.out);
}

#[test]
fn watch_of_a_fleet_without_a_row_ends_with_exit_status_1() {
    let monitor = Monitor::start();
    let (_, parts) = dealt(&monitor.home, 30);
    let _agents = monitor.agents(&parts[..1]);
    let started = std::time::Instant::now();
    let none = monitor.run(&[
        "watch",
        "--for",
        "2s",
        "select op from IO where latency > 1 h",
    ]);
    assert!(started.elapsed().as_secs_f64() >= 2.0);
    assert_eq!((none.code, none.out.as_str()), (1, ""), "{}", none.err);
    assert!(
        none.err.contains("weir: the query has no row"),
        "{}",
        none.err
    );
    let hosts = monitor.run(&["watch", "select count(*) from hosts"]);
    assert_eq!(hosts.code, 0, "{}", hosts.err);
}

#[test]
fn watch_of_a_fleet_reports_errors_by_their_exit_status() {
    let mut monitor = Monitor::start();
    let fails = |args: &[&str], code: i32, text: &str| {
        let failed: CommandOutput = monitor.run(&[&["watch"], args].concat());
        assert_eq!(
            (failed.code, failed.out.as_str()),
            (code, ""),
            "{}",
            failed.err
        );
        assert!(failed.err.contains(text), "{}", failed.err);
    };
    fails(&["select avrg(latency) from IO"], 2, "did you mean `avg`?");
    fails(
        &["--place", "partials", "select sector from IO"],
        2,
        "`partials` is not possible",
    );
    fails(
        &["--stacked", "select op from IO"],
        2,
        "the agents determine",
    );
    fails(&["--standing", "select op from IO"], 2, "--standing");
    fails(
        &["--place", "rows", "--for", "soon", "select op from IO"],
        2,
        "--for",
    );
    assert!(monitor.queries().is_empty());

    let never = "select op from IO where latency > 1 h";
    let signalled = monitor.begin(&["watch", never]);
    let lost = monitor.begin(&["watch", "--name", "lost", never]);
    until("both are watched", || {
        let queries = monitor.queries();
        queries.len() == 2 && queries.iter().all(|query| query["clients"] == 1)
    });
    interrupt(&signalled);
    assert_eq!(ended(signalled).code, 130);
    monitor.end("-KILL");
    let lost = ended(lost);
    assert_eq!((lost.code, lost.out.as_str()), (1, ""), "{}", lost.err);
    let unreachable = monitor.run(&["watch", never]);
    assert_eq!(unreachable.code, 1, "{}", unreachable.err);
}
