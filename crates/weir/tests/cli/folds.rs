//! Groups that the kernel makes equal those made from rows, to the last count.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use crate::live::{watchable, watched_disk};
use crate::support::{CommandOutput, run, weir};

/// What both sides compute of the requests of each op.
const KEPT: &str = "op, count(*), count(service), sum(bytes), avg(latency), min(wait), max(service), \
    quantile(latency, 0.99), count(error), \
    histogram(latency, 50 us, 100 us, 200 us, 500 us, 1 ms, 10 ms), histogram(bytes), \
    sum(in_flight), max(in_flight), sum(seek), min(seek), max(seek), quantile(seek, 0.3), \
    histogram(seek, -1000, 0, 1, 1000), sum(interarrival), max(interarrival), \
    quantile(interarrival, 0.5), histogram(interarrival, 10 us, 1 ms), count(*) filter (where seek = 1)";

/// Rows of `[ts]:+:made, op, ...` by instant and op, separately for each of the two sides.
fn made(text: &str) -> BTreeMap<(String, String), BTreeMap<String, String>> {
    let mut made: BTreeMap<_, BTreeMap<String, String>> = BTreeMap::new();
    for line in text.lines() {
        let (ts, row) = line.split_once("]:+:").expect("only rows that come");
        let mut parts = row.splitn(3, ", ");
        let [by, op, rest] = [(); 3].map(|()| parts.next().expect("three parts"));
        let before = made
            .entry((ts.to_owned(), op.to_owned()))
            .or_default()
            .insert(by.to_owned(), rest.to_owned());
        assert_eq!(before, None, "each group comes once: {line}");
    }
    made
}

#[test]
fn groups_made_in_the_kernel_are_those_of_the_rows_to_the_last_count() {
    let test = "groups_made_in_the_kernel_are_those_of_the_rows_to_the_last_count";
    let Some(disk) = watched_disk(test) else {
        return;
    };
    // The second part selects the same rows by a condition that always holds, and a value that only
    // rows contain.
    let query = format!(
        "Rstream(select 'kernel', {KEPT} from IO [range 1 s slide 1 s] group by op \
         union all \
         select 'rows', {KEPT} from IO [range 1 s slide 1 s] where sectors >= 0 group by op \
         having median(latency) is not null or count(*) > 0)"
    );
    let device = ["--device", disk.path()];
    let explained = run(&[&["explain"], &device[..], &[&query]].concat()).fine();
    let places = |place: &str| {
        let lines = explained.lines().filter(|l| l.contains("aggregate "));
        lines.filter(|l| l.ends_with(place)).count()
    };
    assert_eq!(
        (places("-> kernel"), places("-> agent")),
        (1, 1),
        "{explained}"
    );
    assert!(
        explained.contains("kernel: groups by op each 1s"),
        "{explained}"
    );
    let rows_only = run(&[&["explain", "--no-fold"], &device[..], &[&query]].concat()).fine();
    assert!(!rows_only.contains("groups by op"), "{rows_only}");

    let args = [
        &["query", "--for", "12s", "--format", "delta"],
        &device[..],
        &[&query],
    ]
    .concat();
    let mut command = weir(&args);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.unwrap();
    let fio = Command::new("fio")
        .args(["--name=mixed", "--filename", disk.path(), "--direct=1"])
        .args([
            "--rw=randrw",
            "--bsrange=4k-64k",
            "--ioengine=libaio",
            "--iodepth=8",
        ])
        .args(["--numjobs=3", "--time_based", "--runtime=6", "--size=64m"])
        // Beside other tests rows must not come faster than they are read.
        .arg("--rate_iops=1500")
        .output();
    assert!(fio.unwrap().status.success());
    let made = made(&CommandOutput::of(child.wait_with_output().unwrap()).fine());
    assert!(made.len() >= 4, "two ops in several intervals: {made:?}");
    let mut requests = 0;
    for (group, by) in &made {
        let [kernel, rows] = ["kernel", "rows"].map(|who| by.get(who));
        assert!(kernel.is_some() && kernel == rows, "{group:?}: {by:#?}");
        let count = rows.and_then(|row| row.split(", ").next());
        requests += count.expect("it was compared").parse::<u64>().unwrap();
    }
    assert!(requests > 1_000, "{requests} requests");
}

#[test]
fn the_kernel_aggregates_all_queries_of_top() {
    let test = "the_kernel_aggregates_all_queries_of_top";
    if !watchable(test) {
        return;
    }
    let asked = run(&["top", "--show-query"]).fine();
    let of_requests = asked.split("-- ").filter(|text| text.contains("from IO ["));
    let mut queries = 0;
    for text in of_requests {
        let (what, query) = text.split_once('\n').expect("a title, and the query");
        let explained = run(&["explain", query]).fine();
        assert!(explained.contains("kernel: groups"), "{what}: {explained}");
        let parts = explained.split_once("\noperators of the engine:\n");
        let (explained, operators) = parts.expect("the plan, and its operators");
        assert!(
            operators.contains(" of preaggregated groups"),
            "{what}: {operators}"
        );
        let mut aggregations = explained.lines().filter(|l| l.contains("aggregate "));
        assert!(
            aggregations.all(|l| l.ends_with("-> kernel")),
            "{what}: {explained}"
        );
        queries += 1;
    }
    assert_eq!(queries, 4, "{asked}");
}
