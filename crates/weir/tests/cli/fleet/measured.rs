//! The measurements of agents are shown, and determine the placement.

use super::processes::{Monitor, until};
use crate::support::requests;

const COUNT: &str = "select op, count(*) from IO [range 1 s slide 1 s] group by op";

/// The first fragment of a query in the output of the monitor's `weir explain` with these
/// arguments.
fn explained(monitor: &Monitor, words: &[&str]) -> serde_json::Value {
    let printed = monitor.run(&[&["explain", "--json", COUNT], words].concat());
    assert_eq!(printed.code, 0, "{}", printed.err);
    serde_json::from_str(&printed.out).unwrap()
}

#[test]
fn explain_shows_what_a_fragment_costs_the_agents_that_run_it() {
    let monitor = Monitor::start();
    let idle = explained(&monitor, &[]);
    assert!(idle["fragments"][0]["measured"].is_null(), "{idle}");
    monitor.place("load", COUNT);
    let trace = monitor.home.write("trace.csv", &requests(20_000));
    let _agents = monitor.agents(&[trace]);
    let rows = |of: &serde_json::Value, key: &str| of["fragments"][0]["measured"][key].as_f64();
    until("the agent tells what the fragment costs", || {
        rows(&explained(&monitor, &[]), "rows_out") > Some(0.0)
    });
    let busy = explained(&monitor, &[]);
    assert_eq!(busy["strategy"], "partials");
    assert!(rows(&busy, "rows_in") > rows(&busy, "rows_out"), "{busy}");
    assert!(rows(&busy, "bytes_out") > Some(0.0), "{busy}");
    let text = monitor.run(&["explain", COUNT]).fine();
    assert!(text.contains("fragment 0, measured"), "{text}");
    assert_eq!(
        explained(&monitor, &["--place", "rows"])["strategy"],
        "rows"
    );
    // A query that runs only to be measured is removed afterwards.
    let analyzed = explained(&monitor, &["--analyze", "--for", "1s", "--place", "rows"]);
    assert_eq!(analyzed["strategy"], "rows");
    let names: Vec<_> = monitor.queries();
    let names: Vec<_> = names.iter().map(|query| query["name"].clone()).collect();
    assert_eq!(names, ["load"]);
}
