//! `weir fleet place --on flink`: a job of Flink has the monitor's answer, each row once, while the
//! processes of Flink are killed; it is found again, continued and replaced.

use serde_json::Value as Json;
use weir_testing::{FlinkCluster, FlinkProcess, Kafka};

use super::flink_turn::FlinkTurn;
use super::forward::{Content, QUERIES, agents, of_changes, of_results};
use super::processes::{Monitor, Process, ended, until};
use crate::support::{run, skipped};

/// A query over the larger groups: some groups of each window are not among them. Its quantiles
/// need functions, which the cluster has in its class path.
fn of_larger_groups() -> String {
    QUERIES[0].1.replace("count(*) > 3", "count(*) > 1000")
}

/// The same query over all groups.
fn of_all_groups() -> &'static str {
    QUERIES[0].1
}

/// A query that joins requests of at least so many bytes with a relation of the agents and with the
/// hosts, over the groups of more than `least` requests.
fn with_devices(bytes: u32, least: u32) -> String {
    let (query, groups) = QUERIES[3].1.split_once("group by i.host, i.pdisk").unwrap();
    let query = query.replacen("select i.host,", "select i.host, h.state,", 1);
    format!(
        "{query}join hosts h on h.host = i.host where i.bytes >= {bytes} \
         group by i.host, h.state, i.pdisk{groups} having count(*) > {least}"
    )
}

/// A monitor that forwards to a broker, and a cluster with one slot.
struct Engines {
    _kafka: Kafka,
    flink: FlinkCluster,
    monitor: Monitor,
    /// Where the monitor forwards to.
    url: String,
    /// Dropped last.
    _turn: FlinkTurn,
}

impl Engines {
    /// With these topics of the monitor.
    fn start(test: &str, topics: &str) -> Option<Engines> {
        let turn = FlinkTurn::wait();
        let found = Kafka::start(None).and_then(|kafka| Ok((kafka, FlinkCluster::start(1)?)));
        let (kafka, flink) = match found {
            Ok(found) => found,
            Err(why) => {
                skipped(test, format!("{why:#}"));
                return None;
            }
        };
        let url = format!("kafka://{}/fleet{topics}", kafka.address());
        let config = format!("[forward]\nto = \"{url}\"\n");
        Some(Engines {
            monitor: Monitor::configured(&config),
            _kafka: kafka,
            flink,
            url,
            _turn: turn,
        })
    }

    /// The options that select Flink.
    fn options(&self) -> Vec<String> {
        let gateway = self.flink.gateway();
        let all = [
            "--on",
            "flink",
            "--forward",
            &self.url,
            "--gateway",
            &gateway,
        ];
        all.map(str::to_owned).to_vec()
    }

    fn place(&self, name: &str, query: &str, more: &[&str]) -> Result<Json, String> {
        let options = self.options();
        let mut args = vec!["fleet", "place", name, query, "--json"];
        args.extend(options.iter().map(String::as_str));
        args.extend(more);
        let output = self.monitor.run(&args);
        match output.code {
            0 => Ok(serde_json::from_str(&output.out).unwrap()),
            _ => Err(output.err),
        }
    }

    /// What a job has written, and the messages of the command.
    fn results(&self, name: &str, seconds: u32) -> (Content, String) {
        let span = format!("{seconds}s");
        let options = self.options();
        let mut args = vec!["fleet", "watch", name, "--from-start", "--for", &span];
        args.extend(["--format", "csv"]);
        // The gateway is not needed.
        args.extend(options[..4].iter().map(String::as_str));
        let output = run(&args);
        assert_eq!(output.code, 0, "{}", output.err);
        (of_results(&output.out), output.err)
    }

    /// What the job has written once smaller groups are there, beside those of before.
    fn with_smaller_groups(&self, before: &Content) -> Content {
        let count = |content: &Content| content.values().map(|rows| rows.len()).sum::<usize>();
        let mut found = Content::new();
        until("smaller groups are there", || {
            let earlier = std::mem::replace(&mut found, self.results("load", 1).0);
            // The last windows may be on their way.
            earlier == found
                && count(&found) > count(before)
                && found.keys().last() >= before.keys().last()
        });
        for (at, rows) in before {
            assert!(found[at].is_superset(rows), "at {at}");
        }
        found
    }
}

/// Compares the windows at the ends of which both have rows.
fn assert_same(found: &Content, expected: &Content) {
    assert!(expected.len() >= 8, "{expected:?}");
    let instants = found.keys().chain(expected.keys());
    for at in instants.collect::<std::collections::BTreeSet<_>>() {
        assert_eq!(found.get(at), expected.get(at), "at {at}");
    }
}

fn wait_for_the_end(agents: Vec<Process>) {
    for mut agent in agents {
        let (code, printed) = agent.end();
        assert_eq!(code, Some(0), "{printed}");
    }
}

#[test]
fn a_job_of_flink_has_the_answer_across_failures() {
    let test = "a_job_of_flink_has_the_answer_across_failures";
    let Some(mut engines) = Engines::start(test, "") else {
        return;
    };
    let placed = engines.place("load", &of_larger_groups(), &[]).unwrap();
    assert_eq!(placed["started"], "new", "{placed}");
    let again = engines.place("load", &of_larger_groups(), &[]).unwrap();
    assert_eq!(
        (&again["started"], &again["job"]),
        (&"existing".into(), &placed["job"])
    );
    // The only slot is in use.
    let waiting = engines.place("distinct", QUERIES[1].1, &[]).unwrap_err();
    assert!(waiting.contains("no free slot (1 in all)"), "{waiting}");
    let mut cancel = vec!["fleet", "cancel", "distinct", "--json"];
    let options = engines.options();
    cancel.extend(options.iter().map(String::as_str));
    engines.monitor.run(&cancel).fine();

    let file = engines.monitor.home.file("load.csv");
    let watch = engines
        .monitor
        .begin(&["fleet", "watch", "load", "--format", "csv", "-o", &file]);
    let agents = agents(&engines.monitor);
    until("Flink has written rows", || {
        !engines.results("load", 1).0.is_empty()
    });
    engines.flink.kill(FlinkProcess::TaskManager);
    let before = engines.results("load", 1).0;
    engines.flink.restart(FlinkProcess::TaskManager).unwrap();
    wait_for_the_end(agents);
    until("all windows have passed", || {
        engines.monitor.holds("load").lines().count() == 1
    });
    let cancelled = ["fleet", "cancel", "load"];
    let content = || {
        let text = std::fs::read_to_string(&file).unwrap();
        of_changes(&text, 1_000)
    };
    let expected = content();
    let last = |content: &Content| content.keys().last().copied();
    assert!(last(&before) < last(&expected), "{before:?}");
    until("Flink has all windows", || {
        engines.results("load", 1).0.keys().last() >= expected.keys().last()
    });
    assert_same(&engines.results("load", 2).0, &expected);

    // The gateway knows nothing after a restart.
    engines.flink.kill(FlinkProcess::Gateway);
    let away = engines.place("load", &of_larger_groups(), &[]).unwrap_err();
    assert!(
        away.contains("the SQL Gateway of Flink at http://127.0.0.1:"),
        "{away}"
    );
    // Nor is anything changed that was to be replaced.
    engines
        .place("load", of_all_groups(), &["--replace"])
        .unwrap_err();
    let queries = engines.monitor.run(&["fleet", "queries", "--json"]).fine();
    let queries: Json = serde_json::from_str(&queries).unwrap();
    assert_eq!(queries[0]["query"], of_larger_groups(), "{queries}");
    assert_same(&engines.results("load", 1).0, &expected);
    engines.flink.restart(FlinkProcess::Gateway).unwrap();
    let again = engines.place("load", &of_larger_groups(), &[]).unwrap();
    assert_eq!(
        (&again["started"], &again["job"]),
        (&"existing".into(), &placed["job"])
    );

    // A job manager without high availability knows nothing either: a new job continues.
    engines.flink.restart(FlinkProcess::JobManager).unwrap();
    let continued = engines.place("load", &of_larger_groups(), &[]).unwrap();
    assert_eq!(continued["started"], "continued", "{continued}");
    assert_eq!(continued["replaced"], Json::Array(Vec::new()));
    until("rows are written again", || {
        engines
            .results("load", 1)
            .1
            .contains("written again by Flink")
    });
    assert_same(&engines.results("load", 2).0, &expected);

    // Another job needs a confirmation, also where the query is the same.
    let other = ["--job-only", "--flink-set", "pipeline.max-parallelism=64"];
    let refused = engines
        .place("load", &of_larger_groups(), &other)
        .unwrap_err();
    assert!(refused.contains("--replace"), "{refused}");
    let many = ["--parallelism", "5", "--job-only", "--replace"];
    let refused = engines
        .place("load", &of_larger_groups(), &many)
        .unwrap_err();
    assert!(refused.contains("4 partitions"), "{refused}");
    // A changed query replaces the job.
    let refused = engines.place("load", of_all_groups(), &[]).unwrap_err();
    assert!(refused.contains("--replace"), "{refused}");
    let replaced = engines
        .place("load", of_all_groups(), &["--replace"])
        .unwrap();
    assert_eq!(replaced["replaced"][0], continued["job"], "{replaced}");
    engines.with_smaller_groups(&expected);
    let listed = run(&[
        "fleet",
        "queries",
        "--on",
        "flink",
        "--gateway",
        &engines.flink.gateway(),
        "--json",
    ]);
    let listed: Json = serde_json::from_str(&listed.fine()).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["results"], "fleet.load.results");
    let mut cancel = cancelled.to_vec();
    cancel.extend(options.iter().map(String::as_str));
    engines.monitor.run(&cancel).fine();
    let listed = engines.monitor.run(&["fleet", "queries", "--json"]).fine();
    assert_eq!(listed.trim(), "[]");
    cancel.push("--job-only");
    let nothing = engines.monitor.run(&cancel);
    assert_eq!(nothing.code, 0, "{}", nothing.err);
    assert!(nothing.err.contains("runs no job"), "{}", nothing.err);
    // It ended when the query was replaced.
    ended(watch).fine();
}

#[test]
fn a_job_over_a_topic_of_all_queries_is_replaced_without_a_wrong_window() {
    let test = "a_job_over_a_topic_of_all_queries_is_replaced_without_a_wrong_window";
    let Some(engines) = Engines::start(test, "?topics=shared") else {
        return;
    };
    // The topic has other rows first.
    engines.monitor.place("other", QUERIES[1].1);
    let placed = engines
        .place("load", &with_devices(2048, 600), &[])
        .unwrap();
    assert_eq!(placed["started"], "new", "{placed}");
    wait_for_the_end(agents(&engines.monitor));
    until("all windows have passed", || {
        engines.monitor.holds("load").lines().count() == 1
    });
    let mut expected = Content::new();
    until("Flink has written rows", || {
        let found = engines.results("load", 1).0;
        let is_complete = !found.is_empty() && found == expected;
        expected = found;
        is_complete
    });

    // A job whose rows the monitor does not forward would never write any.
    let other_rows = with_devices(4096, 3);
    let only = ["--job-only", "--replace"];
    let refused = engines.place("load", &other_rows, &only).unwrap_err();
    let why = "`fleet.all.rows` has no rows of this query";
    assert!(refused.contains(why), "{refused}");
    let again = engines
        .place("load", &with_devices(2048, 600), &[])
        .unwrap();
    assert_eq!(
        (&again["started"], &again["job"]),
        (&"existing".into(), &placed["job"])
    );

    // The same rows are merged in another way, from the beginning of the last minute.
    let replaced = engines
        .place("load", &with_devices(2048, 3), &["--replace"])
        .unwrap();
    assert_eq!(replaced["replaced"][0], placed["job"], "{replaced}");
    assert_eq!(replaced["complete"], true, "{replaced}");
    let found = engines.with_smaller_groups(&expected);
    // Other rows begin now: what was written before is not replaced.
    let changed = engines.place("load", &other_rows, &["--replace"]).unwrap();
    assert_eq!(changed["replaced"][0], replaced["job"], "{changed}");
    assert_eq!(changed["complete"], false, "{changed}");
    assert!(
        changed["from"].as_i64() > replaced["from"].as_i64(),
        "{changed}"
    );
    // Another job of the same rows does not have earlier ones either.
    let settings = ["--flink-set", "pipeline.max-parallelism=64"];
    let again = [&only[..], &settings].concat();
    let again = engines.place("load", &other_rows, &again).unwrap();
    assert_eq!(again["replaced"][0], changed["job"], "{again}");
    assert_eq!(again["complete"], false, "{again}");
    assert_same(&engines.results("load", 2).0, &found);
}

#[test]
fn what_flink_cannot_write_is_refused_before_anything_is_placed() {
    let monitor = Monitor::start();
    let cases = [
        ("select vm, count(*) from IO group by vm", "add a slide"),
        (
            "select count(*) as n from IO [range 1 s slide 1 s] group by vm",
            "select all columns of GROUP BY",
        ),
        (
            "select sector from IO [range 1 s slide 1 s]",
            "SELECT DISTINCT",
        ),
    ];
    for (query, remedy) in cases {
        let place = ["fleet", "place", "x", query, "--on", "flink"];
        let refused = monitor.run(&[&place[..], &["--forward", "kafka://k:9092"]].concat());
        assert_eq!(refused.code, 2, "{query}: {}", refused.err);
        assert!(refused.err.contains(remedy), "{query}: {}", refused.err);
    }
    let query = "select op, count(*) from IO [range 1 s slide 1 s] group by op";
    let refused = monitor.run(&["fleet", "place", "x", query, "--on", "flink"]);
    assert!(
        refused.err.contains("--forward kafka://HOST:PORT"),
        "{}",
        refused.err
    );
    let zstd = [
        "--forward",
        "kafka://k:9092",
        "--flink-with",
        "properties.compression.type=zstd",
    ];
    let place = ["fleet", "place", "x", query, "--on", "flink"];
    let refused = monitor.run(&[&place[..], &zstd].concat());
    assert!(refused.err.contains("snappy"), "{}", refused.err);
    let refused = monitor.run(&["fleet", "place", "x", query, "--parallelism", "2"]);
    assert!(refused.err.contains("for --on flink"), "{}", refused.err);
    let refused = monitor.run(&["fleet", "place", "x", query, "--job-only"]);
    assert!(refused.err.contains("for --on flink"), "{}", refused.err);
    assert_eq!(
        monitor.run(&["fleet", "queries", "--json"]).fine().trim(),
        "[]"
    );
    // Without Flink it is a standing query.
    let placed = monitor.run(&["fleet", "place", "x", query]).fine();
    assert!(placed.contains("standing query `x` was placed"), "{placed}");
    let again = monitor.run(&["fleet", "place", "x", query]).fine();
    assert!(again.contains("runs already"), "{again}");
    let other = query.replace("op", "host");
    let refused = monitor.run(&["fleet", "place", "x", &other]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    let replaced = monitor.run(&["fleet", "place", "x", &other, "--replace", "--json"]);
    assert_eq!(replaced.fine().trim(), r#"{"placed":true,"query":"x"}"#);
}

#[test]
fn the_libraries_of_flink_are_collected() {
    let home = crate::support::Scratch::new();
    let script = weir_testing::repository::root().join("packaging/flink/libraries.sh");
    let folder = home.path().join("lib");
    let collected = std::process::Command::new(script).arg(&folder).output();
    let collected = collected.unwrap();
    if !collected.status.success() {
        let why = String::from_utf8_lossy(&collected.stdout).into_owned();
        return skipped("the_libraries_of_flink_are_collected", why);
    }
    let files = std::fs::read_dir(&folder).unwrap();
    let names: Vec<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    for name in [
        "flink-connector-kafka",
        "kafka-clients",
        "flink-avro",
        "avro",
        "weir-flink.jar",
    ] {
        assert!(names.iter().any(|file| file.starts_with(name)), "{names:?}");
    }
    // They are in Flink itself: twice, classes of one would not be those of the other.
    for name in ["flink-core", "flink-table-common", "slf4j-api"] {
        assert!(
            !names.iter().any(|file| file.starts_with(name)),
            "{names:?}"
        );
    }
}
