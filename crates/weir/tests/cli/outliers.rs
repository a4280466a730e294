//! `weir outliers`: its report equals a recomputation over the rows of queries.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::live::{on_disk, watchable};
use crate::support::{Scratch, run, shared};

/// The bundled recording.
const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

/// A request, from its row at the issue and its row at the end.
struct Recomputed {
    disk: [Value; 3],
    issued: i64,
    finished: i64,
    latency: i64,
    bytes: i64,
}

fn rows(from: &str, query: &str) -> Vec<Value> {
    let out = run(&["query", "--from", from, "--format", "json", query]).fine();
    let rows = out.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

/// The requests of a file that finished with a known latency.
fn requests(from: &str) -> Vec<Recomputed> {
    let at = "ts - timestamp '1970-01-01 00:00:00' as at, req_id, vm, vdisk, pdisk";
    let query = format!("select type, {at}, bytes from IOstream");
    let key = |row: &Value| {
        let disk = ["vm", "vdisk", "pdisk"].map(|name| row[name].clone());
        (row["req_id"].as_i64().unwrap(), format!("{disk:?}"))
    };
    let issued = rows(from, &query)
        .into_iter()
        .filter(|row| row["type"] == "Q");
    let mut issues: HashMap<_, Vec<Value>> = HashMap::new();
    for row in issued {
        issues.entry(key(&row)).or_default().push(row);
    }
    let query = format!("select type, {at}, latency from IO where latency is not null");
    let ended = rows(from, &query).into_iter().map(|row| {
        let finished = row["at"].as_i64().unwrap();
        let latency = row["latency"].as_i64().unwrap();
        // An id can be used again: its request is the latest one before the end.
        let issue = issues[&key(&row)].iter().rev();
        let mut issue = issue.filter(|issue| issue["at"].as_i64().unwrap() <= finished);
        let issue = issue.next().expect("each response has a request");
        Recomputed {
            disk: ["vm", "vdisk", "pdisk"].map(|name| row[name].clone()),
            issued: issue["at"].as_i64().unwrap(),
            finished,
            latency,
            bytes: issue["bytes"].as_i64().unwrap(),
        }
    });
    ended.collect()
}

fn outliers(args: &[&str]) -> Value {
    let out = run(&[&["outliers", "--json"], args].concat()).fine();
    assert_eq!(out.lines().count(), 1, "{out}");
    serde_json::from_str(&out).unwrap()
}

/// Compares the report on a file with the recomputation; returns the overlaps that were compared.
fn compare(from: &str, slowest: usize) -> usize {
    let report = outliers(&["--from", from, "--slowest", &slowest.to_string()]);
    let all = requests(from);
    assert_eq!(report["over"], all.iter().filter(|r| r.latency > 0).count());
    let mut latencies: Vec<i64> = all.iter().map(|request| request.latency).collect();
    latencies.sort_unstable_by(|a, b| b.cmp(a));
    latencies.retain(|latency| *latency > 0);
    latencies.truncate(slowest);
    let found = report["outliers"].as_array().unwrap();
    let reported = found
        .iter()
        .map(|o| o["request"]["latency_ns"].as_i64().unwrap());
    assert_eq!(reported.collect::<Vec<_>>(), latencies);
    let mut overlaps = 0;
    for outlier in found {
        let slow = &outlier["request"];
        let disk = ["vm", "vdisk", "pdisk"].map(|name| slow[name].clone());
        let at = |name: &str| slow[name].as_i64().unwrap();
        let (inserted, issued) = (at("inserted_ns"), at("issued_ns"));
        let finished = at("finished_ns");
        assert_eq!(at("latency_ns"), finished - inserted);
        let around = all.iter().filter(|other| {
            // One of the requests with these times is the slow one itself.
            other.disk == disk && other.issued < finished && other.finished > inserted
        });
        let around: Vec<&Recomputed> = around.collect();
        let own = around
            .iter()
            .filter(|r| (r.issued, r.finished) == (issued, finished));
        assert!(own.count() > 0, "{slow}");
        assert_eq!(outlier["overlapping"], around.len() - 1, "{slow}");
        let bytes: i64 = around.iter().map(|request| request.bytes).sum();
        let groups = outlier["around"].as_array().unwrap();
        let grouped: i64 = groups.iter().map(|g| g["bytes"].as_i64().unwrap()).sum();
        assert_eq!(grouped + at("bytes"), bytes, "{slow}");
        overlaps += around.len() - 1;
    }
    overlaps
}

#[test]
fn the_slowest_requests_of_a_recording_equal_a_recomputation() {
    assert!(compare(SAMPLE, 100) > 10);
    let report = outliers(&["--from", SAMPLE, "--over", "2ms"]);
    let rows = rows(
        SAMPLE,
        "select count(*) as slow from IO where latency > 2 ms",
    );
    assert_eq!(report["over"], rows.last().unwrap()["slow"]);
    let listed = report["outliers"].as_array().unwrap();
    assert_eq!(report["over"], listed.len());
    let of_vm = outliers(&["--from", SAMPLE, "-w", "none"]);
    assert_eq!(of_vm["finished"], 0);
    let of_disk = outliers(&["--from", SAMPLE, "-i", "/dev/loop1"]);
    assert_eq!(of_disk["finished"], report["finished"]);
}

#[test]
fn the_slowest_requests_of_sample_traces_equal_a_recomputation() {
    let test = "the_slowest_requests_of_sample_traces_equal_a_recomputation";
    for (folder, file) in [
        ("blktrace-takeoverjp", "sample.blktrace.0"),
        ("disksim", "cheetah9LP.trace"),
    ] {
        if let Some(folder) = shared(test, folder) {
            compare(folder.join(file).to_str().unwrap(), 50);
        }
    }
}

#[test]
fn the_report_is_a_table_with_timelines_and_a_picture() {
    let scratch = Scratch::new();
    let svg = scratch.file("slow.svg");
    let args = [
        "outliers",
        "--from",
        SAMPLE,
        "--slowest",
        "3",
        "--svg",
        &svg,
    ];
    let out = run(&args).fine();
    assert!(out.starts_with("3 slowest of 1030 requests"), "{out}");
    assert!(
        out.contains("|========================================| 7.4 ms this request"),
        "{out}"
    );
    let picture = scratch.read("slow.svg");
    assert!(picture.starts_with("<svg") && picture.matches("this request").count() == 3);
    let refused = run(&["outliers", "--from", SAMPLE, "--slowest", "0"]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("from 1 to 1000"), "{}", refused.err);
}

#[test]
fn of_a_trace_without_completions_it_is_reported_that_latencies_are_unknown() {
    let scratch = Scratch::new();
    let line = |i: u64| format!("1,W,{},4096,{}\n", 4096 * i, 1_577_808_000_000_000 + i);
    let lines: String = (0..20).map(line).collect();
    let trace = scratch.write("t.csv", &lines);
    let out = run(&["outliers", "--from", &trace]).fine();
    assert!(out.contains("20 requests have no known latency"), "{out}");
}

/// Writes a file of one block again and again until `is_done`.
fn write_until(path: &std::path::Path, is_done: &AtomicBool) {
    while !is_done.load(Ordering::Relaxed) {
        let mut file = File::create(path).unwrap();
        file.write_all(&[1; 4096]).unwrap();
        file.sync_all().unwrap();
    }
}

#[test]
fn the_slowest_requests_of_this_host_are_found_while_it_writes() {
    let test = "the_slowest_requests_of_this_host_are_found_while_it_writes";
    let scratch = Scratch::new();
    if !watchable(test) || !on_disk(test, scratch.path()) {
        return;
    }
    let is_done = AtomicBool::new(false);
    let path = scratch.path().join("data");
    let found = std::thread::scope(|scope| {
        scope.spawn(|| write_until(&path, &is_done));
        // On a busy host the probes may be attached late.
        let reports = ["1s", "4s", "16s"].iter();
        let mut reports = reports.map(|span| outliers(&["--for", span, "--slowest", "50"]));
        // A flush, which each write needs as well, has no time of service.
        let found = reports.find_map(|report| {
            let requests = report["outliers"].as_array()?.iter().map(|o| &o["request"]);
            let mut writes = requests.filter(|request| request["service_ns"].is_i64());
            writes.next().cloned()
        });
        is_done.store(true, Ordering::Relaxed);
        found
    });
    let slow = found.expect("the writes are observed");
    let ns = |name: &str| slow[name].as_i64().unwrap();
    assert_eq!(ns("latency_ns"), ns("wait_ns") + ns("service_ns"), "{slow}");
    assert!(
        slow["process"].is_string() && slow["pdisk"].is_string(),
        "{slow}"
    );
}
