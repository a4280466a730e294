//! The load test of a monitor: agents, monitor and clients are real, the events are generated.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::Stop;
use weir_simulation::load_test::{LoadTarget, LoadTest};

/// The measurements with `agents` agents of 20 events per second each.
fn figures(agents: usize, queries: Vec<String>, span: Duration) -> Result<Value, Failure> {
    let test = LoadTest {
        agents,
        events_per_second: 20.0,
        vms: 4,
        queries,
        span,
    };
    let target = LoadTarget::Started {
        weir: PathBuf::from(env!("CARGO_BIN_EXE_weir")),
        heartbeat: Duration::from_millis(50),
    };
    let measured = test.run(&target, &Stop::new())?;
    Ok(measured.expect("no signal ended it").json())
}

#[test]
fn every_event_of_every_agent_is_received() {
    let query = "Istream(select host, vm, latency from IO [now])";
    let found = figures(20, vec![query.to_owned()], Duration::from_secs(3));
    let found = found.unwrap_or_else(|failure| panic!("{}", failure.text()));
    assert_eq!(
        (&found["agents"], &found["connected"]),
        (&20.into(), &20.into())
    );
    assert_eq!(found["fragments"], 20);
    assert_eq!(found["hosts_responded"], 20);
    assert_eq!(found["rows_lost"].as_u64().unwrap_or(0), 0);
    let figure = |name: &str| found[name].as_f64().unwrap();
    // One row for each event, except those in transit at the start and the end of the measurement.
    // On a busy machine these are a considerable part.
    let share = figure("rows_per_second") / figure("events_per_second");
    assert!((0.5..=2.0).contains(&share), "{found}");
    assert!(figure("results_per_second") > 0.0 && figure("rows_acked_per_second") > 0.0);
    assert!(figure("monitor_memory_bytes") > 0.0 && figure("bytes_per_second") > 0.0);
    let delay = &found["delay_ms"];
    assert!(delay["p50"].as_f64() <= delay["p99"].as_f64());
    assert!(delay["p99"].as_f64() <= delay["max"].as_f64());
}

#[test]
fn equal_fragments_of_many_queries_run_once() {
    let copy = |n: u32| {
        format!(
            "select vm, count(*) from IO [range 1 s slide 1 s] group by vm having count(*) > {n}"
        )
    };
    let found = figures(5, (1..=10).map(copy).collect(), Duration::from_secs(2));
    let found = found.unwrap_or_else(|failure| panic!("{}", failure.text()));
    assert_eq!(
        (&found["queries"], &found["fragments"]),
        (&10.into(), &5.into())
    );
}

#[test]
fn a_rejected_query_is_a_usage_error_that_names_the_column() {
    let queries = vec!["select nope from IO".to_owned()];
    match figures(1, queries, Duration::from_secs(1)) {
        Err(Failure::Words(text)) => assert!(text.contains("nope"), "{text}"),
        other => panic!("{other:?}"),
    }
}
