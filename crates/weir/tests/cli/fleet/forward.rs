//! `weir monitor --forward`: Flink, over what arrives in Kafka, has the answer of the monitor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::Value as Json;
use weir_testing::flink::entries;
use weir_testing::{Flink, Kafka, KafkaUser};

use super::flink_turn::FlinkTurn;
use super::operations::{metrics_at, metrics_of};
use super::processes::{Monitor, Process, until};
use crate::support::{Scratch, run, skipped};

/// What is placed: partial aggregates, rows, the first rows of an order, and a join with a relation
/// of the hosts, whose content other tests change.
pub(super) const QUERIES: [(&str, &str); 4] = [
    (
        "load",
        "select pdisk, op, count(*) as n, sum(bytes) as total, min(latency) as least, \
         max(latency) as most, avg(latency) as mean, p99(latency) as p99, \
         approx_count_distinct(sector) as sectors, top(sector % 5, 1) as often, \
         histogram(bytes, 1 MiB) as sizes from IO [range 4 s slide 1 s] \
         where bytes >= 2048 group by pdisk, op having count(*) > 3",
    ),
    (
        "distinct sectors",
        "select op, count(distinct sector) as sectors from IO [range 2 s slide 500 ms] group by op",
    ),
    (
        "busiest",
        "select host, sum(bytes) as total from IO [range 1 s slide 1 s] group by host \
         order by total desc limit 2",
    ),
    (
        "with devices",
        "select i.host, i.pdisk, d.devices, count(*) as n from IO [range 4 s slide 1 s] i \
         join (select host, count(*) as devices from devices group by host) d on d.host = i.host \
         group by i.host, i.pdisk, d.devices",
    ),
];

pub(super) const HOSTS: [&str; 3] = ["a", "b", "c"];

/// The requests of each host.
pub(super) const REQUESTS: usize = 4_000;

/// The content of a relation at some instants, in milliseconds since 1970: its rows as texts.
pub(super) type Content = BTreeMap<i64, BTreeSet<String>>;

/// A trace of so many random requests, 400 per second.
pub(super) fn trace(home: &Scratch, host: &str, count: usize) -> String {
    let mut random = fastrand::Rng::with_seed(u64::from(host.as_bytes()[0]));
    let mut text = String::new();
    let mut ts = 128_166_372_030_000_000_u64;
    for _ in 0..count {
        ts += random.u64(0..50_000);
        let op = if random.u8(0..3) == 0 {
            "Write"
        } else {
            "Read"
        };
        let (disk, size) = (random.u8(0..2), 512 * random.u64(1..40));
        let (offset, latency) = (512 * random.u64(0..3_000), random.u64(100..2_000_000));
        writeln!(text, "{ts},{host},{disk},{op},{offset},{size},{latency}").unwrap();
    }
    home.write(&format!("{host}.csv"), &text)
}

/// The configuration of a monitor that forwards to `brokers`, with the queries and a file for each.
fn config(url: &str, more: &str) -> String {
    let mut text = format!("[forward]\nto = \"{url}\"\npartitions = 3\n{more}");
    for (number, (name, query)) in QUERIES.iter().enumerate() {
        write!(
            text,
            "[[query]]\nname = \"{name}\"\ntext = \"{query}\"\n[[query.sink]]\nfile = \"{number}.csv\"\n"
        )
        .unwrap();
    }
    text
}

/// The statements of `weir explain --flink` over all messages that are there now.
fn statements(url: &str, name: &str, query: &str) -> Vec<String> {
    let args = [
        "explain",
        "--flink",
        "--json",
        "--forward",
        url,
        "--name",
        name,
    ];
    let bounded = ["--flink-with", "scan.bounded.mode=latest-offset"];
    let explained = run(&[&args[..], &bounded, &[query]].concat()).fine();
    let explained: Json = serde_json::from_str(&explained).unwrap();
    let text = |value: &Json| value.as_str().unwrap().to_owned();
    let mut statements: Vec<String> = Vec::new();
    for key in ["settings", "functions"] {
        statements.extend(explained[key].as_array().unwrap().iter().map(text));
    }
    for table in explained["tables"].as_array().unwrap() {
        statements.extend([text(&table["definition"]), text(&table["view"])]);
    }
    statements.push(text(&explained["select"]));
    statements
}

/// What Flink finds at each end of a window.
fn in_flink(flink: &mut Flink, statements: &[String]) -> Content {
    let mut content = Content::new();
    for (comes, values) in flink.run(statements).unwrap() {
        assert!(comes, "rows of windows are never retracted");
        let mut values = values.iter().map(|v| v.as_deref().unwrap_or(""));
        let end = values.next().unwrap().parse().unwrap();
        let row: Vec<String> = values.map(|value| rounded(&plain(value))).collect();
        content.entry(end).or_default().insert(row.join("|"));
    }
    content
}

/// A tally of one value as weir prints it; other values as they are.
fn plain(value: &str) -> String {
    match entries(value).as_deref() {
        Ok([(Some(value), count)]) => format!("{{{value}: {count}}}"),
        _ => value.to_owned(),
    }
}

/// The content at each multiple of `slide_ms`, of a file of changes.
pub(super) fn of_changes(csv: &str, slide_ms: i64) -> Content {
    let mut changes: BTreeMap<i64, Vec<(i64, String)>> = BTreeMap::new();
    for line in csv.lines().skip(1) {
        let values: Vec<&str> = line.split(',').collect();
        let row: Vec<String> = values[2..].iter().map(|value| rounded(value)).collect();
        let weight: i64 = values[1].parse().unwrap();
        let at = milliseconds(values[0]);
        changes.entry(at).or_default().push((weight, row.join("|")));
    }
    let (Some(first), Some(last)) = (changes.keys().next(), changes.keys().last()) else {
        return Content::new();
    };
    let (first, last) = (*first, *last);
    let mut present: BTreeMap<String, i64> = BTreeMap::new();
    let mut content = Content::new();
    let mut at = first - first.rem_euclid(slide_ms);
    while at <= last {
        let reached: Vec<i64> = changes.range(..=at).map(|(at, _)| *at).collect();
        for reached in reached {
            for (weight, row) in changes.remove(&reached).unwrap() {
                *present.entry(row).or_default() += weight;
            }
        }
        present.retain(|_, count| *count != 0);
        assert!(present.values().all(|count| *count == 1), "{present:?}");
        if !present.is_empty() {
            content.insert(at, present.keys().cloned().collect());
        }
        at += slide_ms;
    }
    content
}

/// The content at each end of a window, of the rows that a job has written.
pub(super) fn of_results(csv: &str) -> Content {
    let mut content = Content::new();
    for line in csv.lines().skip(1) {
        let values: Vec<&str> = line.split(',').collect();
        let row: Vec<String> = values[1..].iter().map(|value| rounded(value)).collect();
        let of_window = content.entry(milliseconds(values[0])).or_default();
        assert!(of_window.insert(row.join("|")), "twice: {line}");
    }
    content
}

/// Milliseconds since 1970 of an instant.
fn milliseconds(instant: &str) -> i64 {
    let format = time::format_description::well_known::Rfc3339;
    let instant = time::OffsetDateTime::parse(instant, &format).unwrap();
    i64::try_from(instant.unix_timestamp_nanos() / 1_000_000).unwrap()
}

/// The digits of a float that two programs agree on.
fn rounded(value: &str) -> String {
    match value.contains('.').then(|| value.parse::<f64>()) {
        Some(Ok(number)) => format!("{number:.9e}"),
        _ => value.to_owned(),
    }
}

/// A broker and Flink, or none where they cannot be run.
fn engines(test: &str, user: Option<KafkaUser<'_>>) -> Option<(Kafka, Flink, FlinkTurn)> {
    let turn = FlinkTurn::wait();
    let found = Kafka::start(user).and_then(|kafka| Ok((kafka, Flink::start()?)));
    match found {
        Ok((kafka, flink)) => Some((kafka, flink, turn)),
        Err(why) => {
            skipped(test, format!("{why:#}"));
            None
        }
    }
}

pub(super) fn agents(monitor: &Monitor) -> Vec<Process> {
    let traces = HOSTS.map(|host| trace(&monitor.home, host, REQUESTS));
    monitor.agents_with(&traces, &["--once"])
}

/// Every request of the traces is in the messages for query `load`, once.
fn count_requests(flink: &mut Flink, home: &Scratch, url: &str) {
    let mut statements = statements(url, QUERIES[0].0, QUERIES[0].1);
    statements.pop();
    let view = statements
        .last()
        .unwrap()
        .split('`')
        .nth(1)
        .unwrap()
        .to_owned();
    statements.push(format!("SELECT `count` FROM `{view}`"));
    let rows = flink.run(&statements).unwrap();
    let counts = rows
        .iter()
        .map(|(_, row)| row[0].as_ref().unwrap().parse::<usize>().unwrap());
    let found: usize = counts.sum();
    let is_counted = |line: &&str| line.split(',').nth(5).unwrap().parse::<u32>().unwrap() >= 2048;
    let expected = HOSTS.map(|host| {
        let trace = std::fs::read_to_string(home.file(&format!("{host}.csv"))).unwrap();
        trace.lines().filter(is_counted).count()
    });
    assert_eq!(found, expected.iter().sum::<usize>());
}

/// Waits until all agents have ended and no query has a row any more.
fn wait_for_the_end(monitor: &Monitor, agents: Vec<Process>) {
    for mut agent in agents {
        let (code, printed) = agent.end();
        assert_eq!(code, Some(0), "{printed}");
    }
    for (name, _) in QUERIES {
        until("all windows have passed", || {
            monitor.holds(name).lines().count() == 1
        });
    }
}

/// Compares all queries, and counts the requests of all messages.
fn compare(flink: &mut Flink, monitor: &Monitor, url: &str) {
    for (number, (name, query)) in QUERIES.iter().enumerate() {
        let statements = statements(url, name, query);
        let found = in_flink(flink, &statements);
        let file = monitor.home.path().join(format!("state/{number}.csv"));
        let slide_ms = if query.contains("500 ms") { 500 } else { 1_000 };
        let expected = of_changes(&std::fs::read_to_string(file).unwrap(), slide_ms);
        assert!(expected.len() >= 8, "{name}: {expected:?}");
        let instants: BTreeSet<&i64> = found.keys().chain(expected.keys()).collect();
        for at in instants {
            assert_eq!(found.get(at), expected.get(at), "{name} at {at}");
        }
    }
}

#[test]
fn flink_has_the_answer_of_the_monitor_when_processes_are_killed() {
    let test = "flink_has_the_answer_of_the_monitor_when_processes_are_killed";
    compare_across_kills(test, "");
}

#[test]
fn flink_has_the_answer_of_the_monitor_where_queries_share_a_topic() {
    let test = "flink_has_the_answer_of_the_monitor_where_queries_share_a_topic";
    compare_across_kills(test, "?topics=shared");
}

/// Compares the answers of Flink and of a monitor, which forwards to these topics, after broker and
/// monitor were killed.
fn compare_across_kills(test: &str, topics: &str) {
    let Some((mut kafka, mut flink, _turn)) = engines(test, None) else {
        return;
    };
    let url = format!("kafka://{}/fleet{topics}", kafka.address());
    let mut monitor = Monitor::configured(&config(&url, ""));
    let agents = agents(&monitor);
    let forwarded = |monitor: &Monitor| {
        let file = monitor.home.path().join("state/2.csv");
        std::fs::read_to_string(file).map_or(0, |text| text.lines().count())
    };
    until("there are results", || forwarded(&monitor) > 3);
    kafka.kill();
    until("the monitor reports it", || {
        monitor
            .printed()
            .contains("messages are not being forwarded")
    });
    monitor.end("-KILL");
    monitor.again();
    kafka.restart().unwrap();
    wait_for_the_end(&monitor, agents);
    let (code, printed) = monitor.end("-TERM");
    assert_eq!(code, Some(0), "{printed}");
    compare(&mut flink, &monitor, &url);
    count_requests(&mut flink, &monitor.home, &url);
}

/// Metrics of a monitor, by their names with labels.
fn metrics(monitor: &Monitor) -> BTreeMap<String, f64> {
    metrics_at(&metrics_of(|| monitor.printed()))
}

#[test]
fn without_kafka_the_spool_is_bounded_and_the_monitor_answers() {
    // Port 9 is that of discard, which no host serves.
    let more = "spool = \"256 KiB\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n";
    let mut monitor = Monitor::configured(&config("kafka://127.0.0.1:9/away", more));
    let agents = agents(&monitor);
    wait_for_the_end(&monitor, agents);
    let lost = "weir_service_events_lost_total{component=\"forward\"}";
    until("lost requests are counted", || {
        metrics(&monitor)
            .get(lost)
            .is_some_and(|lost| *lost > 100.0)
    });
    let found = metrics(&monitor);
    assert_eq!(found["weir_monitor_forwards"], 0.0);
    let spool = monitor.home.path().join("state/forward");
    let files = std::fs::read_dir(spool).unwrap();
    let bytes: u64 = files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!((64 << 10..300 << 10).contains(&bytes), "{bytes} bytes");
    // The results of the monitor have all requests.
    let file = monitor.home.path().join("state/2.csv");
    let content = of_changes(&std::fs::read_to_string(file).unwrap(), 1_000);
    assert!(content.len() >= 8, "{content:?}");
    assert!(
        monitor
            .queries()
            .iter()
            .all(|query| query["rows_lost"] == 0)
    );
    let (code, printed) = monitor.end("-TERM");
    assert_eq!(code, Some(0), "{printed}");
    let reported = printed.matches("messages are not being forwarded");
    assert!(reported.count() <= 3, "{printed}");
}

#[test]
fn a_wrong_url_is_reported_with_its_form() {
    for url in [
        "http://kafka1:9092",
        "kafka://kafka1",
        "kafka://kafka1:9092/a b",
        "kafka://kafka1:9092?topics=one",
    ] {
        let refused = run(&["monitor", "--forward", url, "--check"]);
        assert_eq!(refused.code, 2, "{}", refused.err);
        let form = ["kafka://HOST:PORT", "letters, digits"];
        assert!(
            form.iter().any(|form| refused.err.contains(form)),
            "{}",
            refused.err
        );
    }
    let home = Scratch::new();
    let file = home.write("m.toml", "[forward]\nto = \"kafka://kafka1\"\n");
    let refused = run(&["monitor", "--config", &file, "--check"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(
        refused.err.contains("m.toml:2: `forward.to`"),
        "{}",
        refused.err
    );
    let missing = "[forward]\nto = \"kafka://kafka1:1\"\n[forward.tls]\nca = \"/none.pem\"\n";
    let file = home.write("m.toml", missing);
    let refused = run(&["monitor", "--config", &file, "--check"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("/none.pem"), "{}", refused.err);
}
