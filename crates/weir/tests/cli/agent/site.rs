//! A monitor that is the agent of another one: it keeps the rules of an agent, in the other
//! monitor's time.

use std::collections::BTreeSet;

use weir_model::Value;
use weir_wire::ChannelTally;

use super::monitor::{Monitor, host_clock, wrong_clock};
use crate::fleet::processes::{Process, until};
use crate::support::{Scratch, requests};

/// The instant of the first of [`requests`].
const FIRST_NS: i64 = 1_172_163_603_000_000_000;

/// Half a second: how far the clocks of one host may be apart on a busy machine.
const TOLERANCE_NS: i64 = 500_000_000;

/// The monitor of a site and its agents, which replay the same recording.
struct Site {
    home: Scratch,
    upstream: String,
    shift: i64,
}

impl Site {
    /// A site whose agents replay some seconds later.
    fn new(upstream: &Monitor) -> Site {
        let home = Scratch::new();
        home.write("monitor.toml", "idle = \"60 s\"\n");
        home.write("trace.csv", &requests(500));
        Site {
            home,
            upstream: upstream.address(),
            shift: host_clock() + 6_000_000_000 - FIRST_NS,
        }
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).to_str().unwrap().to_owned()
    }

    fn listen(&self) -> String {
        format!("unix:{}", self.path("m.sock"))
    }

    /// Starts the monitor, with its earlier state if there is one.
    fn monitor(&self) -> Process {
        let (config, state) = (self.path("monitor.toml"), self.path("state"));
        let args = ["monitor", "--config", &config, "--listen", &self.listen()];
        let args = [
            &args[..],
            &["--state", &state, "--upstream", &self.upstream],
        ]
        .concat();
        let monitor = Process::start(&args);
        until("it is connected", || {
            monitor
                .printed()
                .contains("connected to the upstream monitor")
        });
        monitor
    }

    fn agent(&self, host: &str) -> Process {
        let (trace, state) = (self.path("trace.csv"), self.path(host));
        let shift = format!("{}ns", self.shift);
        let args = ["agent", "--monitor", &self.listen(), "--host", host];
        let replay = ["--from", &trace, "--shift", &shift, "--state", &state];
        Process::start(&[&args[..], &replay].concat())
    }
}

/// The requests of the agents.
const ISSUED: &str = "select ts, host, req_id from IOstream where type = 'Q'";

#[test]
fn a_site_keeps_the_time_of_its_upstream_monitor() {
    let upstream = Monitor::with_clock(wrong_clock::<5000, -300>);
    let here = Site::new(&upstream);
    let mut site = here.monitor();
    upstream.run(1, ISSUED);
    upstream.until("it has started without agents", |received| {
        received.started.contains_key(&1)
    });
    let agents = ["a", "b"].map(|host| here.agent(host));
    upstream.until("all rows are there", |received| received.count(1) == 1_000);
    let received = upstream.received();
    let mut numbers = BTreeSet::new();
    for (at, (ts, values)) in received.rows[&1].iter().enumerate() {
        let [Value::Int(own), Value::Text(host), Value::Int(req_id)] = &values[..] else {
            panic!("{values:?}");
        };
        // The requests of both hosts have the same instants.
        let expected = FIRST_NS + here.shift + 5_000_000_000 + (at as i64 / 2) * 1_000_000;
        assert!((ts - expected).abs() < TOLERANCE_NS, "{ts} for {expected}");
        assert_eq!(own, ts);
        numbers.insert((host.to_string(), req_id >> 32));
    }
    let hosts: Vec<&str> = numbers.iter().map(|(host, _)| &**host).collect();
    assert_eq!(hosts, ["a", "b"], "each host has one number: {numbers:?}");
    let status = received.status.as_ref().expect("a status was received");
    let hosts = received.hosts.as_ref().expect("the hosts were received");
    assert_eq!((hosts.hosts, hosts.responded), (2, 2));
    let of_channel = hosts.channels[0];
    assert_eq!((of_channel.channel, of_channel.missing), (1, 0));
    // What it sends is complete since the agents have joined.
    assert!(of_channel.complete_from_ns > received.started[&1]);
    assert!((status.offset_ns - 5_000_000_000).abs() < TOLERANCE_NS);
    assert_eq!(received.hellos.len(), 1);
    assert!(received.failed.is_empty() && received.lost.is_empty());
    drop(received);
    drop(agents);
    site.signal("-TERM");
    let (code, printed) = site.end();
    assert_eq!(code, Some(0), "{printed}");
}

#[test]
fn requests_that_a_killed_site_had_received_are_reported() {
    let upstream = Monitor::start();
    let here = Site::new(&upstream);
    let mut site = here.monitor();
    upstream.run(1, ISSUED);
    let _a = here.agent("a");
    let b = here.agent("b");
    upstream.until("both agents run the query", |received| {
        let hosts = received.hosts.as_ref();
        hosts.is_some_and(|of| of.hosts == 2 && of.channels.iter().any(|c| c.missing == 0))
    });
    // Without it, the site cannot pass rows on, and it has acknowledged those of the other one.
    b.signal("-STOP");
    let tally = |produced| ChannelTally {
        channel: 1,
        produced,
        lost: 0,
    };
    upstream.until("the rows of one agent have arrived", |received| {
        let status = received.status.as_ref();
        status.is_some_and(|status| status.tallies.contains(&tally(500)))
    });
    assert_eq!(upstream.received().count(1), 0);
    site.signal("-KILL");
    site.end();
    let mut site = here.monitor();
    upstream.until("it is connected again", |received| {
        received.hellos.len() == 2
    });
    let received = upstream.received();
    let [first, second] = &received.hellos[..] else {
        panic!("{:?}", received.hellos);
    };
    assert!(second.is_site);
    let [earlier] = &second.earlier[..] else {
        panic!("{second:?}");
    };
    assert_eq!(earlier.instance, first.instance);
    assert_eq!(earlier.tallies, [tally(500)]);
    drop(received);
    b.signal("-CONT");
    site.signal("-TERM");
    let (code, printed) = site.end();
    assert_eq!(code, Some(0), "{printed}");
}
