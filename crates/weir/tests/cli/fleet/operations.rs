//! What operators connect to monitor and agents: metrics, health checks, systemd, backups.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::processes::{Monitor, Process, until};
use crate::dashboards;
use crate::support::{Scratch, run, skipped, weir};

const METRICS: &str = "[metrics]\nlisten = \"127.0.0.1:0\"\n";

const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

const COUNT: &str = "select host, count(*) from IO [range 1 s slide 1 s] group by host";

/// Status and body of a response.
pub fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    (status.to_owned(), body.to_owned())
}

/// The metrics of a service, by their names with labels.
pub fn metrics_at(address: &str) -> BTreeMap<String, f64> {
    let (_, text) = get(address, "/metrics");
    let values = text.lines().filter_map(|line| line.rsplit_once(' '));
    values
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

/// The address of the metrics in a service's log.
pub fn metrics_of(printed: impl Fn() -> String) -> String {
    let address = || {
        let printed = printed();
        let after = printed.split("serving metrics url=http://").nth(1)?;
        Some(after.split('/').next()?.to_owned())
    };
    until("metrics are served", || address().is_some());
    address().unwrap()
}

/// An agent of host `a` with metrics, which replays a recording of seconds within hours.
fn agent(home: &Scratch, monitor: &str) -> Process {
    let config = home.write("agent.toml", METRICS);
    let state = home.path().join("a");
    Process::start(&[
        "agent",
        "--config",
        &config,
        "--monitor",
        monitor,
        "--host",
        "a",
        "--state",
        state.to_str().unwrap(),
        "--from",
        SAMPLE,
        "--pace",
        "0.001",
    ])
}

#[test]
fn metrics_and_health_checks_follow_the_agents() {
    let monitor = Monitor::configured(METRICS);
    monitor.place("load", COUNT);
    let of_monitor = metrics_of(|| monitor.printed());
    until("the monitor is ready", || {
        get(&of_monitor, "/readyz").0 == "200"
    });
    assert_eq!(get(&of_monitor, "/healthz"), ("200".into(), "ok\n".into()));
    let mut first = agent(&monitor.home, &monitor.address);
    let of_agent = metrics_of(|| first.printed());
    until("the agent is ready", || {
        get(&of_agent, "/readyz").0 == "200"
    });
    let up = |value: u32| format!("weir_monitor_agent_up{{host=\"a\"}} {value}\n");
    let metrics = || get(&of_monitor, "/metrics").1;
    until("the agent is up", || metrics().contains(&up(1)));
    let agents = get(&of_agent, "/metrics").1;
    for expected in [
        "weir_service_info{service=\"agent\"",
        "weir_service_ready 1\n",
        "weir_agent_connected 1\n",
        "weir_agent_fragments 1\n",
    ] {
        assert!(agents.contains(expected), "{expected}: {agents}");
    }
    let monitors = metrics();
    for expected in [
        "weir_monitor_queries 1\n",
        "weir_service_agents{component=\"monitor\"} 1\n",
        "weir_service_events_out_total{component=\"query load\"} 0\n",
    ] {
        assert!(monitors.contains(expected), "{expected}: {monitors}");
    }
    for (whose, text) in [("monitor", &monitors), ("agent", &agents)] {
        promtool_accepts(whose, text);
    }
    // The clock of a recording is not compared with the monitor's.
    let of_live_agents = ["weir_monitor_agent_clock_offset_seconds"];
    let served = [&monitors, &agents]
        .map(|text| dashboards::names(text))
        .concat();
    let is_served = |word: &str| of_live_agents.contains(&word) || served.contains(&word);
    let test = "metrics_and_health_checks_follow_the_agents";
    dashboards::shows_only(test, "weir-fleet-dashboard.json", is_served);
    dashboards::rules_have_only("weir-fleet-rules.yml", is_served);
    first.signal("-TERM");
    first.end();
    until("the agent has ended", || metrics().contains(&up(0)));
}

/// `promtool check metrics`, where it is installed.
fn promtool_accepts(whose: &str, text: &str) {
    let mut promtool = Command::new("promtool");
    let promtool = promtool
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let Ok(mut child) = promtool.spawn() else {
        skipped("metrics of services in promtool", "it is not installed");
        return;
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let found = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{whose}: {found}\n{text}");
}

#[test]
fn an_agent_without_a_monitor_is_live_and_not_ready() {
    let home = Scratch::new();
    let nowhere = format!("unix:{}", home.path().join("none.sock").display());
    let agent = agent(&home, &nowhere);
    let address = metrics_of(|| agent.printed());
    let reason = || get(&address, "/readyz");
    until("the reason is known", || {
        reason().1.starts_with("not connected to the monitor: ")
    });
    assert_eq!(reason().0, "503");
    assert_eq!(get(&address, "/healthz").0, "200");
    let (_, metrics) = get(&address, "/metrics");
    assert!(metrics.contains("weir_service_ready 0\n"), "{metrics}");
}

#[test]
fn an_address_that_others_reach_has_to_be_permitted() {
    let home = Scratch::new();
    let text = "monitor = \"unix:/m\"\n[metrics]\nlisten = \"0.0.0.0:9101\"\n";
    let config = home.write("agent.toml", text);
    let checked = run(&["agent", "--check", "--config", &config]);
    assert_eq!(checked.code, 2);
    assert!(
        checked.err.contains("agent.toml:3: `metrics.listen`: ")
            && checked.err.contains("open = true"),
        "{}",
        checked.err
    );
    let config = home.write("agent.toml", &format!("{text}open = true\n"));
    assert_eq!(run(&["agent", "--check", "--config", &config]).code, 0);
}

#[test]
fn systemd_is_notified_of_start_reload_and_end() {
    let home = Scratch::new();
    let path = home.path().join("notify.sock");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let config = home.write("monitor.toml", "");
    let (listen, state) = (home.path().join("m.sock"), home.path().join("state"));
    let mut monitor = weir(&["monitor", "--config", &config])
        .args(["--listen", &format!("unix:{}", listen.display())])
        .args(["--state", state.to_str().unwrap()])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "1000000")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Waits for a line; others may come before it, and those of the watchdog never end.
    let received = |line: &str| {
        let (mut buffer, started) = ([0; 4096], Instant::now());
        loop {
            assert!(started.elapsed() < Duration::from_secs(60), "{line}");
            let length = socket.recv(&mut buffer).expect(line);
            let text = String::from_utf8_lossy(&buffer[..length]);
            if text.lines().any(|l| l == line) {
                return;
            }
        }
    };
    received("READY=1");
    received("STATUS=0 agents, 0 queries");
    received("WATCHDOG=1");
    let signal = |name: &str| {
        let id = monitor.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
    };
    signal("-HUP");
    received("RELOADING=1");
    received("READY=1");
    signal("-TERM");
    received("STOPPING=1");
    assert!(monitor.wait().unwrap().success());
}

#[test]
fn a_backup_restores_the_queries_views_and_alerts_of_a_monitor() {
    let configured = format!("[[query]]\nname = \"fixed\"\ntext = \"{COUNT}\"\n");
    let from = Monitor::configured(&configured);
    from.place("load", COUNT);
    let view = "create view busy as select vdisk, latency from IO where latency > 10 ms";
    assert_eq!(from.run(&["query", view]).code, 0);
    from.place(
        "slow",
        "select vdisk, count(*) from busy [range 1 s] group by vdisk",
    );
    let alert = ["alert", "place", "--rule", "agent_gone"];
    assert_eq!(from.run(&alert).fine(), "agent_gone\n");
    let file = from.home.path().join("backup.json");
    let file = file.to_str().unwrap();
    let saved = from.run(&["fleet", "backup", "-o", file]);
    assert_eq!(saved.code, 0, "{}", saved.err);
    assert!(
        saved
            .err
            .contains("query fixed is not included: it is defined in the monitor's"),
        "{}",
        saved.err
    );
    let to = Monitor::start();
    to.place("load", COUNT);
    let checked = to.run(&["fleet", "restore", file, "--check"]);
    assert_eq!(checked.code, 0, "{}", checked.err);
    assert_eq!(to.queries().len(), 1);
    let restored = to.run(&["fleet", "restore", file]);
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert!(
        restored
            .err
            .contains("query load exists already and is not changed")
            && restored.err.contains("weir: 3 restored, 0 failed"),
        "{}",
        restored.err
    );
    let text = |monitor: &Monitor, name: &str| {
        let queries = monitor.queries();
        let query = queries.iter().find(|q| q["name"] == name);
        query.map(|q| (q["query"].clone(), q["standing"].clone()))
    };
    assert!(text(&from, "slow").is_some());
    assert_eq!(text(&from, "slow"), text(&to, "slow"));
    let alerts = |monitor: &Monitor| {
        let listed = monitor.run(&["alert", "list", "--json"]).fine();
        let listed: Json = serde_json::from_str(&listed).unwrap();
        listed[0]["text"].clone()
    };
    assert!(alerts(&from).is_string());
    assert_eq!(alerts(&from), alerts(&to));
    // The view is stored, not only contained in the query.
    let described = to.run(&["query", "describe busy"]);
    assert_eq!(described.code, 0, "{}", described.err);
    let damaged = from.home.write("damaged.json", "{\"version\": 2}");
    let refused = to.run(&["fleet", "restore", &damaged]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("weir fleet backup"), "{}", refused.err);
}
