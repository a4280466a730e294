//! `weir agent --forward`: without a monitor, Flink has the answer that a monitor has, while agents
//! and the broker are killed.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value as Json;
use weir_testing::{FlinkCluster, Kafka};

use super::flink_turn::FlinkTurn;
use super::forward::{Content, REQUESTS, of_changes, of_results, trace};
use super::operations::{metrics_at, metrics_of};
use super::processes::{Monitor, Process, agents_of, ended, replay_shift, until};
use crate::support::{Scratch, run, skipped};

const QUERY: &str = "select host, pdisk, op, count(*) as n, sum(bytes) as total, max(latency) as most, \
     avg(latency) as mean, p99(latency) as p99 from IO [range 2 s slide 1 s] \
     group by host, pdisk, op";

/// How far back a window reaches, and how long its rows are under way, in milliseconds.
const WINDOW_MS: i64 = 3_000;

/// An agent on a host that replays a trace and forwards `QUERY` as `load`.
fn forwarding(home: &Scratch, config: &str, host: &str, trace: &str, shift: &str) -> Process {
    let state = home.file(&format!("forwarding {host}"));
    let args = ["agent", "--config", config, "--host", host];
    let replay = ["--from", trace, "--shift", shift, "--state", &state];
    Process::start(&[&args[..], &replay].concat())
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

/// What the job has written.
fn results(url: &str) -> Content {
    let args = ["fleet", "watch", "load", "--on", "flink", "--forward", url];
    let all = ["--from-start", "--for", "1s", "--format", "csv"];
    let output = run(&[&args[..], &all].concat());
    assert_eq!(output.code, 0, "{}", output.err);
    of_results(&output.out)
}

/// The rows of a host at each end of a window.
fn of_host(content: &Content, host: &str) -> BTreeMap<i64, Vec<String>> {
    let begin = format!("{host}|");
    let of_window = |(at, rows): (&i64, &std::collections::BTreeSet<String>)| {
        let rows = rows.iter().filter(|row| row.starts_with(&begin));
        let rows: Vec<String> = rows.cloned().collect();
        (!rows.is_empty()).then_some((*at, rows))
    };
    content.iter().filter_map(of_window).collect()
}

#[test]
fn flink_has_the_answer_of_a_monitor_where_agents_forward_themselves() {
    let test = "flink_has_the_answer_of_a_monitor_where_agents_forward_themselves";
    let _turn = FlinkTurn::wait();
    let found = Kafka::start(None).and_then(|kafka| Ok((kafka, FlinkCluster::start(1)?)));
    let (mut kafka, flink) = match found {
        Ok(found) => found,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    // The topic of a host has the rows of another query, too.
    let url = format!("kafka://{}/direct?topics=shared", kafka.address());
    let monitor = Monitor::start();
    monitor.place("load", QUERY);
    let file = monitor.home.file("load.csv");
    let watch = monitor.begin(&["fleet", "watch", "load", "--format", "csv", "-o", &file]);
    let home = Scratch::new();
    let config = format!(
        "[forward]\nto = \"{url}\"\n[[query]]\nname = \"load\"\ntext = \"{QUERY}\"\n\
         [[query]]\nname = \"rows\"\ntext = \"select pdisk as op, sector from IO\"\n"
    );
    let config = home.write("agent.toml", &config);
    let hosts = ["a", "b.example.org", "c", "d"];
    // What host c does when it is back is compared as well.
    let requests = |host: &str| if host == "c" { 3 * REQUESTS } else { REQUESTS };
    let traces = hosts.map(|host| trace(&home, host, requests(host)));
    let shift = replay_shift();
    let begin = |at: usize| forwarding(&home, &config, hosts[at], &traces[at], &shift);
    let mut forwarders: Vec<Process> = (0..hosts.len()).map(begin).collect();
    let compared: Vec<_> = (0..3)
        .map(|at| (&monitor, hosts[at], &traces[at]))
        .collect();
    let agents = agents_of(&compared, &shift, &["--once"]);

    let place = [
        "fleet", "place", "load", QUERY, "--on", "flink", "--agents", "--json",
    ];
    let gateway = flink.gateway();
    let at = ["--forward", &url, "--gateway", &gateway];
    // Longer than Kafka is away.
    let idle = ["--flink-with", "scan.watermark.idle-timeout=30s"];
    let placed = run(&[&place[..], &at, &idle].concat()).fine();
    let placed: Json = serde_json::from_str(&placed).unwrap();
    assert_eq!(placed["started"], "new", "{placed}");
    let mut written = BTreeMap::new();
    until("Flink has written rows of host c", || {
        written = of_host(&results(&url), "c");
        !written.is_empty()
    });

    // A host that does not return no longer delays the others.
    forwarders[3].signal("-KILL");
    kafka.kill();
    forwarders[2].signal("-KILL");
    forwarders[2].end();
    forwarders[2] = begin(2);
    until("the agent of host c is back", || {
        forwarders[2].printed().contains("connected to the monitor")
    });
    let back_ms = now_ms();
    until("an agent reports that Kafka is away", || {
        let printed = forwarders[0].printed();
        printed.contains("messages are not being forwarded")
    });
    kafka.restart().unwrap();

    for mut agent in agents {
        let (code, printed) = agent.end();
        assert_eq!(code, Some(0), "{printed}");
    }
    until("all windows have passed", || {
        monitor.holds("load").lines().count() == 1
    });
    monitor.run(&["fleet", "cancel", "load"]).fine();
    ended(watch).fine();
    let expected = of_changes(&std::fs::read_to_string(&file).unwrap(), 1_000);
    let last = *expected.keys().last().unwrap();
    until("Flink has all windows", || {
        results(&url).keys().last().is_some_and(|at| *at >= last)
    });
    let found = results(&url);
    for host in &hosts[..2] {
        let expected = of_host(&expected, host);
        assert!(expected.len() >= 8, "{expected:?}");
        assert_eq!(of_host(&found, host), expected, "{host}");
    }
    // What an agent had in memory when it was killed is missing, and what it does not observe
    // while it is away, and nothing else.
    let written_ms = *written.keys().last().unwrap();
    let not_away = |at: &i64| *at <= written_ms || *at > back_ms + WINDOW_MS;
    let of_c = |content| {
        let mut rows = of_host(content, "c");
        rows.retain(|at, _| not_away(at));
        rows
    };
    assert_eq!(of_c(&found), of_c(&expected));
    let is_back = |at: &&i64| **at > back_ms + WINDOW_MS;
    assert!(of_c(&found).keys().filter(is_back).count() >= 5);
    assert!(!of_host(&found, "d").is_empty());
    let cancel = [
        "fleet", "cancel", "load", "--on", "flink", "--agents", "--json",
    ];
    let cancelled = run(&[&cancel[..], &at].concat()).fine();
    let cancelled: Json = serde_json::from_str(&cancelled).unwrap();
    assert_eq!(
        cancelled["jobs"].as_array().unwrap().len(),
        1,
        "{cancelled}"
    );

    for forwarder in &mut forwarders[..3] {
        forwarder.signal("-TERM");
        let (code, printed) = forwarder.end();
        assert_eq!(code, Some(0), "{printed}");
    }
}

#[test]
fn an_agent_without_kafka_keeps_messages_and_reports_it() {
    let home = Scratch::new();
    let trace = trace(&home, "a", REQUESTS);
    let config = "[forward]\nto = \"kafka://127.0.0.1:9/away\"\nspool = \"256 KiB\"\n\
         [metrics]\nlisten = \"127.0.0.1:0\"\n[[query]]\nname = \"rows\"\n\
         text = \"select sector, latency from IO\"\n";
    let file = home.write("agent.toml", config);
    let mut agent = forwarding(&home, &file, "a", &trace, &replay_shift());
    let address = metrics_of(|| agent.printed());
    let metric = |name: &str| metrics_at(&address).get(name).copied();
    // An agent that is stopped for longer than a monitor waits for one loses nothing.
    let arrived = "weir_monitor_agent_requests_total{host=\"a\"}";
    until("requests arrive", || metric(arrived) > Some(100.0));
    agent.signal("-STOP");
    std::thread::sleep(Duration::from_secs(4));
    agent.signal("-CONT");
    until("all requests have arrived", || {
        metric(arrived) == Some(REQUESTS as f64)
    });
    let late = "weir_monitor_agent_requests_late_total{host=\"a\"}";
    assert_eq!(metric(late), Some(0.0));
    let lost = "weir_service_events_lost_total{component=\"forward\"";
    until("what the spool has no room for is counted", || {
        let all = metrics_at(&address);
        let mut all = all.iter();
        all.any(|(name, value)| name.starts_with(lost) && *value > 0.0)
    });
    assert_eq!(metric("weir_monitor_forwards"), Some(0.0));

    // Its queries are listed at its socket, and another one is forwarded after a reload.
    let socket = home.path().join("forwarding a/agent/forward/monitor.sock");
    let socket = format!("unix:{}", socket.display());
    let queries = || {
        let listed = run(&["fleet", "queries", "--json", "--monitor", &socket]).fine();
        let listed: Json = serde_json::from_str(&listed).unwrap();
        let names = listed.as_array().unwrap().iter();
        let names: Vec<String> = names.map(|q| q["name"].as_str().unwrap().into()).collect();
        names
    };
    assert_eq!(queries(), ["rows"]);
    let more = "[[query]]\nname = \"more\"\ntext = \"select op from IO\"\n";
    home.write("agent.toml", &format!("{config}{more}"));
    agent.signal("-HUP");
    until("both queries run", || queries() == ["more", "rows"]);
    let without = config.split("[[query]]").next().unwrap();
    for (text, why) in [
        (format!("{config}{}", more.replace("op", "oops")), "`oops`"),
        (without.to_owned(), "has none"),
        (
            format!("monitor = \"m\"\n{config}"),
            "a monitor or to Kafka",
        ),
        ("monitor = \"m\"\n".to_owned(), "restart the agent"),
    ] {
        home.write("agent.toml", &text);
        agent.signal("-HUP");
        until("it is not reloaded", || agent.printed().contains(why));
        assert_eq!(queries(), ["more", "rows"]);
    }
    agent.signal("-TERM");
    let (code, printed) = agent.end();
    assert_eq!(code, Some(0), "{printed}");
    let left = "Kafka does not have all messages";
    assert!(printed.contains(left), "{printed}");
}

#[test]
fn what_an_agent_cannot_forward_is_refused() {
    let query = "load=select op, count(*) from IO [range 1 s slide 1 s] group by op";
    let to = ["--forward", "kafka://127.0.0.1:9/x"];
    let relation = "h=select host from hosts";
    let joined = "j=select h.state, count(*) from IO [range 1 s slide 1 s] i, hosts h \
                  where i.host = h.host group by h.state";
    let cases: [(&[&str], &str); 8] = [
        (&to, "--query NAME=QUERY"),
        (&["--query", query], "set forward.to or --forward"),
        (&["--forward", "kafka://k"], "kafka://HOST:PORT"),
        (
            &[to[0], to[1], "--query", "a=select oops from IO"],
            "unknown column",
        ),
        (&[to[0], to[1], "--query", "load"], "NAME=QUERY"),
        (
            &[to[0], to[1], "--query", relation],
            "reads nothing that agents send",
        ),
        (
            &[to[0], to[1], "--query", joined],
            "hosts is a relation of the monitor",
        ),
        (
            &[to[0], to[1], "--query", query, "--query", query],
            "two queries",
        ),
    ];
    for (args, why) in cases {
        let refused = run(&[&["agent", "--check"], args].concat());
        assert_eq!(refused.code, 2, "{args:?}: {}", refused.err);
        assert!(refused.err.contains(why), "{args:?}: {}", refused.err);
    }
    let of_monitor = [
        "explain",
        "--flink",
        to[0],
        to[1],
        "--name",
        "j",
        &joined[2..],
    ];
    run(&of_monitor).fine();
    let refused = run(&[&of_monitor[..], &["--agents"]].concat());
    assert_eq!(refused.code, 2, "{}", refused.err);
    let why = "hosts is a relation of the monitor";
    assert!(refused.err.contains(why), "{}", refused.err);
    let home = Scratch::new();
    let forward = "[forward]\nto = \"kafka://k:1\"\n";
    let entry = "[[query]]\nname = \"a\"\ntext = \"select op from IO\"\n";
    let files = [
        (
            format!("monitor = \"m\"\n{forward}{entry}"),
            "a monitor or to Kafka",
        ),
        (format!("{forward}partitions = 2\n{entry}"), "one partition"),
        (format!("{forward}{entry}{entry}"), "two queries"),
        (
            format!("token_file = \"/none\"\n{forward}{entry}"),
            "connection to a monitor",
        ),
        (
            format!(
                "{forward}retention = \"1 d\"\nsettings = {{ \"retention.ms\" = \"1\" }}\n{entry}"
            ),
            "state one of them",
        ),
        (
            format!("{forward}{entry}place = \"here\"\n"),
            "`query.place`",
        ),
    ];
    for (text, why) in files {
        let file = home.write("agent.toml", &text);
        let refused = run(&["agent", "--check", "--config", &file]);
        assert_eq!(refused.code, 2, "{text}: {}", refused.err);
        assert!(refused.err.contains(why), "{text}: {}", refused.err);
    }
    let state = format!("{}/{}", home.path().display(), "s".repeat(100));
    let long = ["--query", query, "--state", &state];
    let refused = run(&[&["agent", "--check"], &to[..], &long].concat());
    assert!(refused.err.contains("a shorter path"), "{}", refused.err);
    // What the command line states replaces what the file states.
    let file = home.write("agent.toml", "monitor = \"m\"\n");
    let check = ["agent", "--check", "--config", &file, "--query", query];
    run(&[&check[..], &to].concat()).fine();
    let file = home.write("agent.toml", &format!("{forward}{entry}"));
    run(&["agent", "--check", "--config", &file, "--monitor", "m"]).fine();
    run(&[&["agent", "--check", "--query", query], &to[..]].concat()).fine();
}
