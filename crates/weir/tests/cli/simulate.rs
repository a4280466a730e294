//! `weir simulate`: agents, monitor and watchers, all of them real but for the events.

use serde_json::Value;

use crate::support::run;

fn simulate(words: &[&str]) -> Value {
    let always = ["simulate", "--spawn-monitor", "--json"];
    let out = run(&[&always, words].concat()).fine();
    serde_json::from_str(&out).unwrap()
}

#[test]
fn every_event_of_every_agent_comes_through() {
    let query = "Istream(select host, vm, latency from IO [now])";
    let found = simulate(&[
        "--agents", "20", "--rate", "20", "--for", "3s", "--query", query,
    ]);
    assert_eq!(
        (&found["agents"], &found["connected"]),
        (&20.into(), &20.into())
    );
    assert_eq!(found["fragments"], 20);
    assert_eq!(found["hosts_heard"], 20);
    assert_eq!(found["rows_lost"].as_u64().unwrap_or(0), 0);
    let figure = |name: &str| found[name].as_f64().unwrap();
    // A row for each event; what is on its way when the measuring begins and ends aside, which on a
    // busy machine is a good part.
    let share = figure("rows_per_second") / figure("events_per_second");
    assert!((0.5..=2.0).contains(&share), "{found}");
    assert!(figure("results_per_second") > 0.0 && figure("rows_taken_per_second") > 0.0);
    assert!(figure("monitor_memory_bytes") > 0.0 && figure("bytes_per_second") > 0.0);
    let delay = &found["delay_ms"];
    assert!(delay["p50"].as_f64() <= delay["p99"].as_f64());
    assert!(delay["p99"].as_f64() <= delay["max"].as_f64());
}

#[test]
fn equal_fragments_of_many_queries_are_run_once() {
    let groups = "select vm, count(*) from IO [range 1 s slide 1 s] group by vm \
                  having count(*) > {}";
    let found = simulate(&[
        "--agents", "5", "--for", "2s", "--copies", "10", "--query", groups,
    ]);
    assert_eq!(
        (&found["queries"], &found["fragments"]),
        (&10.into(), &5.into())
    );
}

#[test]
fn a_query_that_is_refused_and_a_monitor_that_is_not_there_are_told() {
    let said = run(&[
        "simulate",
        "--spawn-monitor",
        "--agents",
        "1",
        "--query",
        "select nope from IO",
    ]);
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("nope"), "{}", said.err);
    let said = run(&["simulate", "--agents", "0"]);
    assert_eq!(said.code, 2);
}
