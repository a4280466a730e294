//! A monitor that is the agent of another one: it keeps the rules of an agent, in the other
//! monitor's time.

use std::collections::BTreeSet;

use weir_model::Value;

use super::monitor::{Monitor, host_clock, wrong_clock};
use crate::fleet::processes::{Process, until};
use crate::support::{Scratch, requests};

/// The instant of the first of [`requests`].
const FIRST_NS: i64 = 1_172_163_603_000_000_000;

/// Half a second: how far the clocks of one host may be apart on a busy machine.
const TOLERANCE_NS: i64 = 500_000_000;

#[test]
fn a_site_keeps_the_time_of_its_upstream_monitor() {
    let upstream = Monitor::with_clock(wrong_clock::<5000, -300>);
    let home = Scratch::new();
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let config = home.write("monitor.toml", "idle = \"60 s\"\n");
    let listen = format!("unix:{}", path("m.sock"));
    let address = upstream.address();
    let state = path("state");
    let mut site = Process::start(&[
        "monitor",
        "--config",
        &config,
        "--listen",
        &listen,
        "--state",
        &state,
        "--upstream",
        &address,
    ]);
    until("it is connected", || {
        site.printed().contains("connected to the upstream monitor")
    });
    upstream.run(1, "select ts, host, req_id from IOstream where type = 'Q'");
    let trace = home.write("trace.csv", &requests(500));
    let shift = host_clock() + 6_000_000_000 - FIRST_NS;
    let shift_text = format!("{shift}ns");
    let agents: Vec<Process> = ["a", "b"]
        .iter()
        .map(|host| {
            let state = path(host);
            let args = ["agent", "--monitor", &listen, "--host", host];
            let replay = ["--from", &trace, "--shift", &shift_text, "--state", &state];
            Process::start(&[&args[..], &replay].concat())
        })
        .collect();
    upstream.until("all rows are there", |received| received.count(1) == 1_000);
    let received = upstream.received();
    let mut numbers = BTreeSet::new();
    for (at, (ts, values)) in received.rows[&1].iter().enumerate() {
        let [Value::Int(own), Value::Text(host), Value::Int(req_id)] = &values[..] else {
            panic!("{values:?}");
        };
        // The requests of both hosts have the same instants.
        let expected = FIRST_NS + shift + 5_000_000_000 + (at as i64 / 2) * 1_000_000;
        assert!((ts - expected).abs() < TOLERANCE_NS, "{ts} for {expected}");
        assert_eq!(own, ts);
        numbers.insert((host.to_string(), req_id >> 32));
    }
    let hosts: Vec<&str> = numbers.iter().map(|(host, _)| &**host).collect();
    assert_eq!(hosts, ["a", "b"], "each host has one number: {numbers:?}");
    let status = received.status.as_ref().expect("a status was received");
    assert_eq!((status.hosts, status.hosts_responded), (2, 2));
    assert!((status.offset_ns - 5_000_000_000).abs() < TOLERANCE_NS);
    assert_eq!(received.hellos.len(), 1);
    assert!(received.failed.is_empty() && received.lost.is_empty());
    drop(received);
    drop(agents);
    site.signal("-TERM");
    let (code, printed) = site.end();
    assert_eq!(code, Some(0), "{printed}");
}
