//! Queries over recordings have the same results in weir and in DuckDB.
//!
//! Recordings are random, and written by weir. Queries are random, from a grammar of both dialects
//! with the differences of [`dialect`], and written by hand (`pairs.test`). A query with windows is
//! compared at every instant of its slide: DuckDB computes each from scratch, by a condition on
//! `ts`. DuckDB is installed into `target/python`; without it the tests are skipped.
//!
//! A failure prints the seed; `WEIR_SEED=17` runs only that one, and `WEIR_SEEDS=1000` more.

mod compare;
mod data;
mod dialect;
mod grammar;
mod levels;
mod oracle;
mod text;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fastrand::Rng;
use weir_testing::{Scratch, is_full};

use dialect::{DIFFERENCES, Difference};
use grammar::{Grammar, WindowQuery};
use oracle::{DuckDb, Line, Row, weir};
use window::Window;

/// The number of random queries, each with a seed.
const QUERIES: u64 = 300;

/// The same with `cargo xtask test --all`.
const QUERIES_ALL: u64 = 10_000;

/// The number of random queries with windows.
const WINDOW_QUERIES: u64 = 100;

/// The same with `cargo xtask test --all`.
const WINDOW_QUERIES_ALL: u64 = 2_000;

/// The number of recordings for the queries written by hand.
const RECORDINGS: u64 = 4;

/// The most instants at which one query is compared.
const INSTANTS_MAX: usize = 25;

/// The most rows of a recording: a join of three has to be fast in a debug build.
const ROWS_MAX: usize = 30;

/// The seeds to run: those of the environment, or `count` of them.
fn seeds(count: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    match number("WEIR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WEIR_SEEDS").unwrap_or(count),
    }
}

#[test]
fn random_queries_have_the_results_of_duckdb() {
    let Some(mut duckdb) = DuckDb::start("random_queries_have_the_results_of_duckdb") else {
        return;
    };
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    let count = if is_full() { QUERIES_ALL } else { QUERIES };
    let (mut failures, mut overflows, mut row_count) = (Vec::new(), 0, 0);
    let seeds = seeds(count);
    for seed in seeds.clone() {
        let mut rng = Rng::with_seed(seed);
        data::write(&path, ROWS_MAX, &mut rng);
        duckdb.open(&path);
        let query = Grammar::new(&mut rng).query();
        let expected = duckdb.answer(&query.text.duckdb);
        let lines = weir(&path, &["--final"], &query.text.cql);
        let result = match (lines, expected) {
            (Ok(lines), Ok(expected)) => {
                let got = rows(&lines);
                row_count += got.len();
                compare::agree(&got, &expected, query.is_ordered)
            }
            (Err(weir), Err(duckdb)) if is_overflow(&weir) && is_overflow(&duckdb) => {
                overflows += 1;
                Ok(())
            }
            // DuckDB does not convert the sum of a group that is removed.
            (Err(weir), Ok(_)) if is_overflow(&weir) && query.text.duckdb.contains("HAVING") => {
                overflows += 1;
                Ok(())
            }
            (Err(why), _) => Err(format!("weir: {why}")),
            (_, Err(why)) => Err(format!("DuckDB: {why}")),
        };
        if let Err(why) = result {
            let (cql, sql) = (&query.text.cql, &query.text.duckdb);
            failures.push(format!("seed {seed}\n  CQL: {cql}\n  SQL: {sql}\n{why}"));
        }
    }
    println!(
        "{} queries, {row_count} rows, {overflows} overflows",
        seeds.end - seeds.start
    );
    assert!(
        failures.is_empty(),
        "{} differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// A query of `pairs.sql`.
struct Pair {
    claim: String,
    cql: String,
    sql: String,
}

/// The queries of `pairs.sql`; the header is the first paragraph.
fn pairs() -> Vec<Pair> {
    let text = include_str!("pairs.sql");
    let mut pairs: Vec<Pair> = Vec::new();
    let mut claim = String::new();
    let mut query = String::new();
    for line in text.lines() {
        match line.strip_prefix("-- ") {
            Some(comment) => claim = comment.to_owned(),
            None => query += &format!("{line} "),
        }
        let Some(found) = query.trim().strip_suffix(';') else {
            continue;
        };
        match (claim.as_str(), pairs.last_mut()) {
            ("duckdb", Some(pair)) => pair.sql = found.to_owned(),
            _ => pairs.push(Pair {
                claim: claim.clone(),
                sql: without_windows(found),
                cql: found.to_owned(),
            }),
        }
        query.clear();
    }
    assert!(query.trim().is_empty(), "the last query ends with `;`");
    pairs
}

/// The query without what is in brackets.
fn without_windows(query: &str) -> String {
    let mut parts = query.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once(']').expect("a window ends").1);
    first + &rest.collect::<String>()
}

#[test]
fn pairs_of_queries_have_equal_results() {
    let Some(mut duckdb) = DuckDb::start("pairs_of_queries_have_equal_results") else {
        return;
    };
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    let mut failures = Vec::new();
    for seed in 0..RECORDINGS {
        data::write(&path, ROWS_MAX, &mut Rng::with_seed(seed));
        duckdb.open(&path);
        for Pair { claim, cql, sql } in pairs() {
            let got = weir(&path, &["--final"], &cql).map(|lines| rows(&lines));
            let expected = duckdb.answer(&sql);
            let is_ordered = cql.contains("order by req_id limit");
            let result = match (got, expected) {
                (Ok(got), Ok(expected)) => compare::agree(&got, &expected, is_ordered),
                (Err(why), _) => Err(format!("weir: {why}")),
                (_, Err(why)) => Err(format!("DuckDB: {why}")),
            };
            if let Err(why) = result {
                failures.push(format!(
                    "{claim} (recording {seed})\n  CQL: {cql}\n  SQL: {sql}\n{why}"
                ));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// The rows of a final relation, copies as often as they are in it.
fn rows(lines: &[Line]) -> Vec<Row> {
    let copies = |l: &Line| vec![l.row.clone(); l.weight as usize];
    lines.iter().flat_map(copies).collect()
}

#[test]
fn random_windows_have_the_results_of_duckdb_at_every_instant() {
    let test = "random_windows_have_the_results_of_duckdb_at_every_instant";
    let Some(mut duckdb) = DuckDb::start(test) else {
        return;
    };
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    let count = if is_full() {
        WINDOW_QUERIES_ALL
    } else {
        WINDOW_QUERIES
    };
    let (mut failures, mut compared) = (Vec::new(), 0);
    let seeds = seeds(count);
    for seed in seeds.clone() {
        let mut rng = Rng::with_seed(seed);
        let times = data::write(&path, ROWS_MAX, &mut rng);
        duckdb.open(&path);
        let query = Grammar::new(&mut rng).window_query();
        let instants = instants(&query, &times, &mut rng);
        compared += instants.len();
        let result = match weir(&path, &[], &query.text.cql) {
            Ok(lines) => compare_instants(&mut duckdb, &query, &lines, &instants),
            Err(why) if is_overflow(&why) => Ok(()),
            Err(why) => Err(format!("weir: {why}")),
        };
        if let Err(why) = result {
            failures.push(format!("seed {seed}\n  CQL: {}\n{why}", query.text.cql));
        }
    }
    println!("{} queries at {compared} instants", seeds.end - seeds.start);
    assert!(
        failures.is_empty(),
        "{} differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Some of the instants at which the query may change, in order.
fn instants(query: &WindowQuery, times: &[i64], rng: &mut Rng) -> Vec<i64> {
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        return Vec::new();
    };
    let changes = |window: &Window| {
        times
            .iter()
            .flat_map(|ts| window.instants(*ts))
            .collect::<Vec<_>>()
    };
    let all: BTreeSet<i64> = query.windows.iter().flat_map(changes).collect();
    let mut all: Vec<i64> = all
        .into_iter()
        .filter(|at| (first..=last).contains(&at))
        .collect();
    rng.shuffle(&mut all);
    all.truncate(INSTANTS_MAX);
    if let [window] = &query.windows[..] {
        all.push(window.end(*last));
    }
    all.sort_unstable();
    all
}

/// Compares the relation that weir's insertions and retractions add up to with DuckDB's result.
fn compare_instants(
    duckdb: &mut DuckDb,
    query: &WindowQuery,
    lines: &[Line],
    instants: &[i64],
) -> Result<(), String> {
    let mut content: BTreeMap<String, (Row, i64)> = BTreeMap::new();
    let mut lines = lines.iter().peekable();
    for at in instants {
        while let Some(line) = lines.next_if(|line| nanoseconds(&line.instant) <= *at) {
            let key = serde_json::to_string(&line.row).expect("values are JSON");
            let entry = content.entry(key).or_insert_with(|| (line.row.clone(), 0));
            entry.1 += line.weight;
        }
        let copies = |(row, count): &(Row, i64)| vec![row.clone(); *count as usize];
        let got: Vec<Row> = content.values().flat_map(copies).collect();
        let sql = query.sql(*at);
        let expected = duckdb.answer(&sql);
        let result = expected.and_then(|expected| compare::agree(&got, &expected, false));
        result.map_err(|why| format!("  at {at}\n  SQL: {sql}\n{why}"))?;
    }
    Ok(())
}

/// The instant of a row, `2023-11-14T22:13:20.000001000Z`, on the first day of all recordings.
fn nanoseconds(instant: &str) -> i64 {
    let number = |range: Range<usize>| -> i64 { instant[range].parse().expect("a number") };
    let midnight = data::START_NS - (data::START_NS % 86_400_000_000_000);
    let days = number(8..10) - 14;
    let seconds = ((days * 24 + number(11..13)) * 60 + number(14..16)) * 60 + number(17..19);
    midnight + seconds * 1_000_000_000 + number(20..29)
}

#[test]
fn events_of_paired_requests_are_those_of_the_documented_view() {
    let Some(mut duckdb) =
        DuckDb::start("events_of_paired_requests_are_those_of_the_documented_view")
    else {
        return;
    };
    let scratch = Scratch::new();
    let path = scratch.path().join("x.parquet");
    for (seed, tick_ns) in [(1, 1_000), (2, 20_000)] {
        data::write_requests(&path, seed, tick_ns);
        duckdb.open(&path);
        let columns = "type, op, req_id, sector, sectors, bytes, pdisk, pid, comm, cpu, error, \
                       merges, vsector";
        for (stream, columns) in [
            ("IOstream", columns.to_owned()),
            (
                "IO",
                format!("{columns}, wait, service, latency, in_flight, seek, interarrival"),
            ),
        ] {
            let each = columns.split(", ").enumerate();
            let named: Vec<String> = each.map(|(at, name)| format!("{name} as c{at}")).collect();
            let cql = format!("select {} from {stream}", named.join(", "));
            let lines = weir(&path, &[], &cql).expect("weir answers");
            let got: Vec<Row> = lines.iter().map(|line| line.row.clone()).collect();
            let sql = format!("select {columns} from {stream} order by number");
            let expected = duckdb.answer(&sql).expect("DuckDB answers");
            assert_eq!(got.len(), expected.len(), "{stream}, seed {seed}");
            for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got, expected, "{stream}, seed {seed}, row {at}");
            }
        }
        let times = "select min(ns), max(ns), sum(ns % 1000000007) from IOstream";
        let weir_times = "select cast(min(ts) as integer) as c0, cast(max(ts) as integer) as c1, \
                          sum(cast(ts as integer) % 1000000007) as c2 from IOstream";
        let got = weir(&path, &["--final"], weir_times).expect("weir answers");
        let expected = duckdb.answer(times).expect("DuckDB answers");
        assert_eq!(rows(&got), expected, "seed {seed}");
    }
}

#[test]
fn the_page_lists_every_difference() {
    let page = weir_testing::repository::read("docs/cql.md");
    let cell = |text: &str| {
        text.replace('|', "\\|")
            .replace("{0}", "x")
            .replace("{1}", "y")
    };
    let line = |d: &Difference| {
        let (cql, duckdb, why) = (cell(d.cql), cell(d.duckdb), d.why);
        format!("| {} | `{cql}` | `{duckdb}` | {why} |", d.name)
    };
    let lines = DIFFERENCES.iter().map(line);
    let missing: Vec<String> = lines.filter(|line| !page.contains(line)).collect();
    assert!(
        missing.is_empty(),
        "docs/cql.md has no line\n{}",
        missing.join("\n")
    );
}

/// Whether a query failed since a number is too large, in either program.
fn is_overflow(message: &str) -> bool {
    ["overflow", "out of range", "Out of Range"]
        .iter()
        .any(|part| message.contains(part))
}
