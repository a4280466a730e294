//! `weir correlate --monitor`, and relation `correlations` at a monitor: disks of two hosts with
//! the same bursts, and one of a third host with its own.

use serde_json::Value as Json;

use super::processes::{Monitor, ended, until};
use crate::support::Scratch;

/// Steps of 100 ms.
const STEPS: u64 = 120;

/// The first millisecond of the traces of this module, as the MSR traces count it.
const BEGIN: u64 = 128_166_372_030_000_000;

/// A trace with this number of requests in each step.
fn trace(home: &Scratch, name: &str, rate: impl Fn(u64) -> u64) -> String {
    let requests = (0..STEPS).flat_map(|step| {
        let requests = rate(step);
        (0..requests).map(move |i| 1_000_000 * step + 1_000_000 * i / requests.max(1))
    });
    let line = |(i, at): (usize, u64)| {
        let ts = BEGIN + at;
        format!("{ts},vm,0,Read,{},4096,3000\n", 4096 * i)
    };
    let text: String = requests.enumerate().map(line).collect();
    home.write(name, &text)
}

/// The host of a disk in a report.
fn host(disk: &Json) -> &str {
    disk["host"].as_str().unwrap_or_else(|| panic!("{disk}"))
}

#[test]
fn disks_of_two_hosts_that_move_together_are_named_with_their_hosts() {
    let monitor = Monitor::start();
    let mut random = fastrand::Rng::with_seed(7);
    let mut rates = || -> Vec<u64> { (0..STEPS).map(|_| random.u64(1..40)).collect() };
    let (common, other) = (rates(), rates());
    let traces = [
        trace(&monitor.home, "a.csv", |step| common[step as usize]),
        trace(&monitor.home, "b.csv", |step| 2 * common[step as usize]),
        trace(&monitor.home, "c.csv", |step| other[step as usize]),
    ];
    let _agents = monitor.agents(&traces);
    until("the agents are connected", || {
        let hosts = monitor.run(&["fleet", "hosts", "--json"]).fine();
        hosts.matches("\"state\":\"up\"").count() == 3
    });
    let args = [
        "correlate",
        "--step",
        "100ms",
        "--window",
        "4s",
        "--lag",
        "0",
    ];
    let relation = "Istream(select distinct leader_host, follower_host
                    from correlations [range 4 s slide 100 ms] where metric = 'iops')";
    let query = ["query", "--for", "22s", "--format", "csv", relation];
    let query = monitor.begin(&query);
    let correlate = monitor.begin(&[&args[..], &["--json", "--for", "22s"]].concat());
    let found = ended(correlate).fine();
    let lines: Vec<Json> = found
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (summary, windows) = lines.split_last().expect("a summary");
    let summary = &summary["summary"];
    let pairs = summary["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 1, "{summary}");
    let pair = &pairs[0]["strongest"];
    let mut hosts = [host(&pair["leader"]), host(&pair["follower"])];
    hosts.sort_unstable();
    assert_eq!(hosts, ["a", "b"], "{summary}");
    assert!(pair["coefficient"].as_f64().unwrap() > 0.9, "{summary}");
    // A window for each step, once the first is complete.
    assert!(
        windows.len() as u64 > STEPS / 4,
        "{} windows",
        windows.len()
    );
    assert!(windows.iter().all(|line| line["window"].is_object()));
    // The relation of the same windows. Without a lag either disk can be named first.
    let rows = ended(query).fine();
    let mut pairs = rows.lines().skip(1).map(|line| {
        let mut hosts: Vec<&str> = line.split(',').skip(1).collect();
        hosts.sort_unstable();
        hosts
    });
    assert!(rows.lines().count() > 1, "{rows}");
    assert!(pairs.all(|hosts| hosts == ["a", "b"]), "{rows}");
    let text = monitor.run(&[&args[..], &["--for", "1s"]].concat());
    assert_eq!(text.code, 0, "{}", text.err);
    let wrong = monitor.run(&["correlate", "--from", &traces[0]]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
}
