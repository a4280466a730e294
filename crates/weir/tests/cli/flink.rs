//! `weir explain --flink`: what it prints, and that Flink gives the same answer over rows that the
//! printed commands make of a recording.

use std::collections::BTreeSet;

use serde_json::Value;
use weir_testing::Flink;

use crate::support::{Scratch, run, skipped};

const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/three-disks.parquet"
);

const QUERIES: [&str; 5] = [
    "select pdisk, op, count(*) as n, sum(bytes) as bytes, min(latency) as least, \
     max(latency) as most, avg(latency) as mean from IO [range 2 s slide 1 s] \
     where bytes >= 4096 group by pdisk, op having count(*) > 10",
    "select pdisk, quantile(latency, 0.5) as p50, p99(latency) as p99, \
     quantile(latency / 1000.0, 0.9) as us, approx_count_distinct(sector) as sectors \
     from IO [range 4 s slide 1 s] group by pdisk",
    "select pdisk, top(sectors, 3) as sizes, top(op, 5) as ops, histogram(latency) as latencies, \
     histogram(bytes, 4 KiB, 64 KiB) as few from IO [range 2 s slide 1 s] group by pdisk",
    "select pdisk, seek, latency from IO [range 1 s slide 1 s] order by latency desc limit 3",
    "select r.pdisk as pdisk, count(*) as pairs from IO [range 100 ms slide 100 ms] as r \
     join IO [range 100 ms slide 100 ms] as w on r.pdisk = w.pdisk and r.sector < w.sector \
     group by r.pdisk",
];

/// The SQL of a query, with tables over the files that the printed commands write.
fn statements(query: &str, scratch: &Scratch) -> Vec<String> {
    let path = format!("path=file://{}", scratch.file("{stream}.json"));
    let options = ["connector=filesystem", &path, "format=json"];
    let mut args = vec!["explain", "--flink", "--json", "--from", RECORDING];
    args.extend(options.iter().flat_map(|option| ["--flink-with", option]));
    let explained: Value =
        serde_json::from_str(&run(&[&args[..], &[query]].concat()).fine()).unwrap();
    let mut statements: Vec<String> = Vec::new();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    statements.extend(explained["settings"].as_array().unwrap().iter().map(text));
    statements.extend(explained["functions"].as_array().unwrap().iter().map(text));
    for table in explained["tables"].as_array().unwrap() {
        let command = text(&table["rows"]);
        let query = command.strip_prefix("weir query --format json \"").unwrap();
        let query = query.strip_suffix('"').unwrap();
        let rows = ["query", "--format", "json", "--from", RECORDING, query];
        let stream = table["stream"].as_str().unwrap();
        scratch.write(&format!("{stream}.json"), &run(&rows).fine());
        statements.push(text(&table["definition"]));
    }
    statements.push(text(&explained["select"]));
    statements
}

/// The content of the relation at each end of a window, from the engine: the time of day, and the
/// values of a row, floats rounded, in the order of their texts.
fn content(query: &str) -> BTreeSet<(String, String)> {
    let query = format!("Rstream({query})");
    let rows = run(&["query", "--format", "json", "--from", RECORDING, &query]).fine();
    let row = |line: &str| {
        let Value::Object(mut row) = serde_json::from_str(line).unwrap() else {
            panic!("{line}");
        };
        let instant = row.remove("instant").unwrap();
        let (_, time) = instant.as_str().unwrap().split_once('T').unwrap();
        // An object states how much of the last slide is there.
        let values = row.values().filter(|value| !value.is_object());
        let values = values.map(|value| match value {
            Value::String(text) => text.clone(),
            other => rounded(&other.to_string()),
        });
        let mut values: Vec<String> = values.collect();
        values.sort();
        (time[.."13:40:52.000".len()].to_owned(), values.join("|"))
    };
    rows.lines().map(row).collect()
}

fn rounded(number: &str) -> String {
    match number.parse::<f64>() {
        Ok(number) => format!("{number:.6e}"),
        Err(_) => number.to_owned(),
    }
}

/// The time of day of milliseconds since 1970.
fn time_of_day(ms: i64) -> String {
    let (seconds, rest) = (ms / 1000 % 86_400, ms % 1000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{rest:03}", seconds % 60)
}

#[test]
fn flink_has_the_same_answer_over_a_recording() {
    let test = "flink_has_the_same_answer_over_a_recording";
    let mut flink = match Flink::start() {
        Ok(flink) => flink,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    for query in QUERIES {
        let scratch = Scratch::new();
        let rows = flink.run(&statements(query, &scratch)).unwrap();
        let found = rows.iter().map(|(comes, values)| {
            assert!(comes, "rows of windows are never retracted");
            let mut values = values
                .iter()
                .map(|value| value.as_deref().unwrap_or("null"));
            let end = time_of_day(values.next().unwrap().parse().unwrap());
            let mut values: Vec<String> = values.map(rounded).collect();
            values.sort();
            (end, values.join("|"))
        });
        let expected = content(query);
        assert!(expected.len() > 10, "{query}: {expected:?}");
        // Flink closes all windows at the end of its input, the engine none that end later.
        let last = &expected.last().unwrap().0;
        let found: BTreeSet<_> = found.filter(|(end, _)| end <= last).collect();
        let differ: Vec<_> = found.symmetric_difference(&expected).collect();
        assert!(differ.is_empty(), "{query}: {differ:?}");
    }
}

#[test]
fn options_replace_those_of_the_same_name() {
    let query = "select vm from IO";
    let printed = run(&["explain", "--flink", query]).fine();
    assert!(printed.contains("'topic' = 'weir.IO'"), "{printed}");
    let topic = ["--flink-with", "topic=disks.{stream}"];
    let printed = run(&[&["explain", "--flink"], &topic[..], &[query]].concat()).fine();
    assert!(printed.contains("'topic' = 'disks.IO'"), "{printed}");
    assert!(printed.contains("'format' = 'json'"), "{printed}");
    let connector = ["--flink-with", "connector=datagen"];
    let printed = run(&[&["explain", "--flink"], &connector[..], &[query]].concat()).fine();
    assert!(!printed.contains("kafka"), "{printed}");
}

#[test]
fn functions_are_those_of_a_jar() {
    let query = "select vm, p99(latency) from IO [range 1 s slide 1 s] group by vm";
    let printed = run(&["explain", "--flink", query]).fine();
    let function = "CREATE TEMPORARY FUNCTION weir_quantile AS 'weir.flink.Quantile' LANGUAGE JAVA";
    assert!(printed.contains(&format!("{function};")), "{printed}");
    let printed = run(&["explain", "--flink", "--flink-jar", "/opt/weir.jar", query]).fine();
    let jar = format!("{function} USING JAR '/opt/weir.jar';");
    assert!(printed.contains(&jar), "{printed}");
}

#[test]
fn what_flink_does_not_compute_is_refused_with_a_remedy() {
    let refused = run(&[
        "explain",
        "--flink",
        "select count(*) from IO [range 1 s slide 1 s]",
    ]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(
        refused.err.contains("add HAVING count(*) > 0"),
        "{}",
        refused.err
    );
    let wrong = run(&[
        "explain",
        "--flink",
        "--flink-with",
        "topic",
        "select vm from IO",
    ]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert!(wrong.err.contains("KEY=VALUE"), "{}", wrong.err);
    let alone = run(&["explain", "--flink-with", "topic=x", "select vm from IO"]);
    assert_eq!(alone.code, 2, "{}", alone.err);
}
