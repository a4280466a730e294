//! Three hosts that replay parts of one recording: the result is that of one engine on the whole.
//! Hosts whose clocks differ are tested in `weir-simulation`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::field::{Field, ended_well, standing};

/// All columns that identify a request, and its completion time.
const EACH: &str = "select cast(ts as integer) as at, host, op, sector, bytes from IO";

/// A query whose result does not depend on the times of events.
const SUMS: &str = "select op, count(*), sum(bytes), max(sector) from IO group by op";

/// A query whose result depends on them.
const WINDOWS: &str =
    "Rstream(select op, count(*), sum(bytes) from IO [range 1 s slide 1 s] group by op)";

/// 1970 in the time of MSR traces: 100 ns since 1601 (Windows' FILETIME).
const FILETIME_1970: i64 = 116_444_736_000_000_000;

/// The bundled recording.
fn recording() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/fio-loop.parquet");
    path.to_str().unwrap().to_owned()
}

#[test]
fn hosts_that_replay_parts_of_a_recording_answer_as_one_engine() {
    const TEST: &str = "hosts_that_replay_parts_of_a_recording_answer_as_one_engine";
    let names = ["first", "second", "third"];
    let more = [
        standing("each", EACH, "csv"),
        standing("sums", SUMS, "delta"),
        standing("windows", WINDOWS, "delta"),
    ];
    let Some(field) = Field::new(TEST, &names, &format!("idle = \"10 s\"\n{}", more.concat()))
    else {
        return;
    };
    let traces = names.map(|name| field.fleet.file(&format!("{name}.csv")));
    let whole = field.fleet.file("all.csv");
    deal(&recording(), &traces, &whole);
    let shift_ns = now_ns() - first_ns(&whole) + 4_000_000_000;
    let shift = format!("{shift_ns} ns");
    let mut agents = Vec::new();
    for (name, trace) in names.iter().zip(&traces) {
        let options = ["--from", trace, "--once", "--shift", &shift];
        let host = field.host(name);
        let agent = field.fleet.agent(name, host, field.address(), "", &options);
        agents.push(agent.unwrap());
    }
    agents.into_iter().for_each(ended_well);

    let expected = held(&printed(&["--from", &whole, "--format", "delta", SUMS]));
    assert_eq!(expected.len(), 2, "reads and writes: {expected:?}");
    field.until("the sums are those of one engine", || {
        held(&read(&field, "sums.delta")) == expected
    });
    // The windows equal those of one engine on the same rows: each row counts at the next full
    // second.
    let each = read(&field, "each.csv");
    let expected = windows(&each);
    let count = |windows: &BTreeMap<String, i64>| windows.values().sum::<i64>();
    field.until("all windows are there", || {
        count(&held(&read(&field, "windows.delta"))) >= count(&expected)
    });
    assert_eq!(held(&read(&field, "windows.delta")), expected);
}

/// Writes the reads and writes of a recording as an MSR Cambridge trace, as a whole and distributed
/// over the hosts in turn.
fn deal(recording: &str, hosts: &[String], whole: &str) {
    let requests = "select cast(ts as integer) - cast(latency as integer) as issued, op, sector, bytes, \
        cast(latency as integer) as took from IO where op = 'r' or op = 'w'";
    let csv = printed(&["--from", recording, "--format", "csv", "--raw", requests]);
    let line = |row: &str| {
        let fields: Vec<&str> = row.split(',').skip(1).collect();
        let number = |at: usize| fields[at].parse::<i64>().unwrap();
        let (issued, took) = (number(0) / 100 + FILETIME_1970, number(4) / 100);
        let op = if fields[1] == "r" { "Read" } else { "Write" };
        let (offset, bytes) = (512 * number(2), number(3));
        (
            issued,
            format!("{issued},vm1,0,{op},{offset},{bytes},{took}\n"),
        )
    };
    let mut lines: Vec<(i64, String)> = csv.lines().skip(1).map(line).collect();
    lines.sort();
    let part = |first: usize, step: usize| -> String {
        let lines = lines.iter().skip(first).step_by(step);
        lines.map(|(_, line)| line.as_str()).collect()
    };
    fs::write(whole, part(0, 1)).unwrap();
    for (turn, host) in hosts.iter().enumerate() {
        fs::write(host, part(turn, hosts.len())).unwrap();
    }
}

/// The time of the first request of a trace.
fn first_ns(trace: &str) -> i64 {
    let text = fs::read_to_string(trace).unwrap();
    let ticks: i64 = text.split(',').next().unwrap().parse().unwrap();
    (ticks - FILETIME_1970) * 100
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}

/// The result of one engine, as printed by `weir query`.
fn printed(args: &[&str]) -> String {
    let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
    let weir = weir.arg("query").args(args).output().unwrap();
    let complaint = String::from_utf8_lossy(&weir.stderr);
    assert!(weir.status.success(), "{complaint}");
    String::from_utf8(weir.stdout).unwrap()
}

fn read(field: &Field, file: &str) -> String {
    let path = field.fleet.file(&format!("monitor/{file}"));
    fs::read_to_string(path).unwrap_or_default()
}

/// The number of copies of each row that remains after all deltas, at any instant.
fn held(deltas: &str) -> BTreeMap<String, i64> {
    let mut rows = BTreeMap::new();
    for line in deltas.lines() {
        let (plus, row) = match (line.split_once("]:+:"), line.split_once("]:-:")) {
            (Some((_, row)), _) => (1, row),
            (_, Some((_, row))) => (-1, row),
            _ => continue,
        };
        *rows.entry(row.to_owned()).or_default() += plus;
    }
    rows.retain(|_, times| *times != 0);
    rows
}

/// The result of the query with a slide on rows with their times: each row counts at the next full
/// second, including the last rows.
fn windows(each: &str) -> BTreeMap<String, i64> {
    let mut groups: BTreeMap<(i64, String), (u64, u64)> = BTreeMap::new();
    for line in each.lines().skip(1) {
        // The first column is the instant, as text.
        let fields: Vec<&str> = line.split(',').skip(1).collect();
        let at: i64 = fields[0].parse().unwrap();
        let second = (at + 999_999_999).div_euclid(1_000_000_000);
        let group = groups.entry((second, fields[2].to_owned())).or_default();
        group.0 += 1;
        group.1 += fields[4].parse::<u64>().unwrap();
    }
    let mut rows = BTreeMap::new();
    for ((_, op), (count, bytes)) in groups {
        *rows.entry(format!("{op}, {count}, {bytes}")).or_default() += 1;
    }
    rows
}
