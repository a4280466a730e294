//! Agents that replay a recording: each row is delivered once, or is counted as lost.

use std::collections::BTreeSet;

use weir_model::Value;

use super::monitor::{Monitor, host_clock, wrong_clock};
use crate::support::{Scratch, requests, run};

/// What two fragments select from the recording.
const FINISHED: &str = "select sector, bytes, latency, host from IO";
const ISSUED: &str = "select sector, op from IOstream where type = 'Q' and op = 'w'";

/// Writes requests as a trace file in `scratch`.
fn recording(scratch: &Scratch, count: usize) -> String {
    scratch.write("trace.csv", &requests(count))
}

fn sorted(mut rows: Vec<String>) -> Vec<String> {
    rows.sort();
    rows
}

#[test]
fn every_row_of_a_recording_arrives_once() {
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    let trace = recording(&scratch, 20_000);
    monitor.run(1, FINISHED);
    monitor.run(2, ISSUED);
    let agent = monitor.agent(&scratch, &["--from", &trace, "--pace", "1e6", "--once"]);
    let (code, log) = agent.end();
    assert_eq!(code, Some(0), "{log}");
    monitor.until("the agent has gone", |received| received.left == 1);

    let received = monitor.received();
    let (text, int) = (Value::text, Value::Int);
    let finished = (0..20_000).map(|i| {
        let bytes = if i % 4 == 3 { 8192 } else { 4096 };
        let row = [int(8 * i), int(bytes), int(500_000), text("a")];
        format!("{:?}", row.to_vec())
    });
    assert_eq!(sorted(received.values(1)), sorted(finished.collect()));
    let issued = (3..20_000).step_by(4);
    let issued = issued.map(|i| format!("{:?}", vec![int(8 * i), text("w")]));
    assert_eq!(sorted(received.values(2)), sorted(issued.collect()));
    assert!(received.lost.is_empty());
    let status = received.status.as_ref().expect("a status was received");
    let tallies: Vec<(u64, u64, u64)> = status
        .tallies
        .iter()
        .map(|t| (t.channel, t.produced, t.lost))
        .collect();
    assert_eq!(tallies, [(1, 20_000, 0), (2, 5_000, 0)]);
    assert!(status.channels.iter().all(|c| c.bytes_out > 10_000));
    assert_eq!(status.kept_share, 1.0);
}

#[test]
fn response_times_come_from_pairs_and_are_those_of_the_join() {
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    let trace = recording(&scratch, 2_000);
    let query = |condition: &str| {
        format!(
            "istream(select r.ts - q.ts, q.req_id, q.sector \
             from IOstream [range 10 ms] as q, IOstream [range 10 ms] as r \
             where q.type = 'Q' and r.type = 'R' and q.req_id = r.req_id {condition})"
        )
    };
    monitor.run(1, &query(""));
    // Pairs have no column for the error of a request, which is null here.
    monitor.run(2, &query("and q.error is null"));
    let agent = monitor.agent(&scratch, &["--from", &trace, "--pace", "1", "--once"]);
    let (code, log) = agent.end();
    assert_eq!(code, Some(0), "{log}");
    monitor.until("the agent has gone", |received| received.left == 1);

    let received = monitor.received();
    let (pairs, join) = (sorted(received.values(1)), sorted(received.values(2)));
    assert_eq!(pairs.len(), 2_000);
    assert_eq!(pairs, join);
    let status = received.status.as_ref().expect("a status was received");
    let rows_in = status.channels.iter().map(|c| (c.channel, c.rows_in));
    assert_eq!(rows_in.collect::<Vec<_>>(), [(1, 2_000), (2, 4_000)]);
}

#[test]
fn rows_are_in_the_monitors_time_whatever_the_agents_clock_shows() {
    let monitor = Monitor::with_clock(wrong_clock::<5000, -300>);
    let scratch = Scratch::new();
    let trace = recording(&scratch, 500);
    let first_ns = 1_172_163_603_000_000_000;
    let shift = host_clock() + 3_000_000_000 - first_ns;
    monitor.run(
        1,
        "select ts, agent_ts, req_id from IOstream where type = 'Q'",
    );
    let shift_text = format!("{shift}ns");
    let args = ["--from", &trace, "--shift", &shift_text, "--once"];
    let agent = monitor.agent(&scratch, &args);
    let (code, log) = agent.end();
    assert_eq!(code, Some(0), "{log}");
    monitor.until("the agent has gone", |received| received.left == 1);

    let received = monitor.received();
    assert_eq!(received.count(1), 500, "{log}");
    let mut numbers = BTreeSet::new();
    for (i, (ts, values)) in received.rows[&1].iter().enumerate() {
        let [Value::Int(own), Value::Int(agent_ts), Value::Int(req_id)] = values[..] else {
            panic!("{values:?}");
        };
        // The clocks differ by five seconds. On one host the error of the offset is far smaller.
        let expected = first_ns + shift + 5_000_000_000 + i as i64 * 1_000_000;
        assert!((ts - expected).abs() < 1_000_000_000, "{ts} for {expected}");
        assert_eq!(own, *ts);
        assert!(agent_ts >= *ts, "taken in after it happened");
        // The upper bits are the number of the host, the lower bits that of the request.
        numbers.insert(req_id >> 32);
    }
    assert!(numbers.len() == 1 && !numbers.contains(&0), "{numbers:?}");
    let status = received.status.as_ref().expect("a status was received");
    assert!((status.offset_ns - 5_000_000_000).abs() < 500_000_000);
    assert!(status.offset_error_ns > 0);
}

#[test]
fn the_next_agent_reports_the_losses_of_a_killed_one() {
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    let trace = recording(&scratch, 200_000);
    monitor.run(1, FINISHED);
    let args = ["--from", &trace, "--pace", "20"];
    let first = monitor.agent(&scratch, &args);
    monitor.until("rows come", |received| received.count(1) > 2_000);
    // From here on messages are not received; the agent keeps them.
    monitor.set_deaf(true);
    std::thread::sleep(std::time::Duration::from_secs(2));
    first.signal("KILL");
    assert_eq!(first.end().0, None);
    monitor.set_deaf(false);
    monitor.until("the agent has gone", |received| received.left == 1);
    let delivered = monitor.received().count(1) as u64;

    let second = monitor.agent(&scratch, &args);
    monitor.until("the next one has come", |received| {
        received.hellos.len() == 2
    });
    let [before, after] = &monitor.received().hellos[..] else {
        panic!("there were two");
    };
    assert!(before.earlier.is_empty());
    let [earlier] = &after.earlier[..] else {
        panic!("one process came before: {:?}", after.earlier);
    };
    assert_eq!(earlier.instance, before.instance);
    let tally = earlier.tallies.iter().find(|t| t.channel == 1).unwrap();
    assert_eq!(tally.lost, 0);
    assert!(
        (delivered + 1..=200_000).contains(&tally.produced),
        "{delivered} delivered of {}",
        tally.produced
    );
    drop(second);
}

#[test]
fn a_budget_that_is_too_small_is_kept_by_a_declared_and_counted_share() {
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    let trace = recording(&scratch, 400_000);
    let config = scratch.write("agent.toml", "[limits]\ncpu = \"0.1 %\"\n");
    monitor.run(1, FINISHED);
    let args = ["--config", &config, "--from", &trace, "--pace", "50"];
    let agent = monitor.agent(&scratch, &[&args[..], &["--once"]].concat());
    let (code, log) = agent.end();
    assert_eq!(code, Some(0), "{log}");
    monitor.until("the agent has gone", |received| received.left == 1);

    let received = monitor.received();
    let declared = received.notes.iter().find(|n| n.counter == "shedding");
    let declared = declared.expect("the shedding is reported");
    assert_eq!(declared.cause.as_deref(), Some("cpu"));
    assert!(received.status.as_ref().is_some_and(|s| s.kept_share < 1.0));
    let shed = received.notes.iter().filter(|n| {
        (n.place.as_str(), n.counter.as_str(), n.cause.as_deref())
            == ("agent", "events_lost", Some("shed"))
    });
    let shed: i64 = shed.map(|n| n.value).sum();
    assert!(shed > 0);
    assert_eq!(received.count(1) as i64 + shed, 400_000);
    assert!(
        log.contains("one request in 2 is sampled cause=cpu"),
        "{log}"
    );
}

#[test]
fn a_hangup_reads_the_configuration_again() {
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    let trace = recording(&scratch, 10);
    let config = scratch.write("agent.toml", "[limits]\ncpu = \"50 %\"\n");
    let agent = monitor.agent(&scratch, &["--config", &config, "--from", &trace]);
    monitor.until("it has joined", |received| received.status.is_some());
    scratch.write("agent.toml", "retry = \"1 s\"\n");
    agent.signal("HUP");
    std::thread::sleep(std::time::Duration::from_millis(300));
    scratch.write(
        "agent.toml",
        "[limits]\ncpu = \"0.1 %\"\n[uplink]\nspool = \"none\"\n",
    );
    agent.signal("HUP");
    monitor.until("the new budget holds", |received| {
        received.notes.iter().any(|n| n.counter == "shedding")
    });
    agent.signal("TERM");
    let (code, log) = agent.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("unknown key `retry`"), "{log}");
    assert!(log.contains("the configuration is unchanged"), "{log}");
    let taken = "limits.cpu = \"0.1 %\" (was \"50 %\"); \
                 uplink.spool = \"none\" (was \"256 MiB\"): needs a restart";
    assert!(log.contains(taken), "{log}");
    monitor.until("its last words are there", |received| received.left == 1);
}

#[test]
fn usage_errors_are_reported_before_anything_runs() {
    let scratch = Scratch::new();
    let check = |args: &[&str], why: &str| {
        let output = run(&[&["agent", "--check"], args].concat());
        assert_eq!(output.code, 2, "{}", output.err);
        assert!(output.err.contains(why), "{}", output.err);
    };
    let config = scratch.write("agent.toml", "stacked = true\nmonitro = \"m\"\n");
    check(
        &["--config", &config],
        "agent.toml:2: unknown key `monitro`",
    );
    let config = scratch.write("agent.toml", "[limits]\ncpu = 5\n");
    check(&["--config", &config], "agent.toml:2: `limits.cpu`: ");
    let config = scratch.write("none.toml", "stacked = false\n");
    check(&["--config", &config], "no monitor is configured");
    check(&["--monitor", "m:x"], "`x` is not a port");
    check(
        &["--monitor", "m", "--from", "qemu:web"],
        "with VM web in column vm",
    );
    check(
        &["--monitor", "m", "--pace", "0"],
        "expected a positive number",
    );
    let fine = run(&["agent", "--check", "--monitor", "m", "--config", &config]).fine();
    assert!(
        fine.ends_with("none.toml: the configuration is valid\n"),
        "{fine}"
    );
}

#[test]
fn two_agents_are_not_at_home_in_one_place() {
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    let trace = recording(&scratch, 10);
    let first = monitor.agent(&scratch, &["--from", &trace]);
    monitor.until("it has joined", |received| !received.hellos.is_empty());
    let (code, log) = monitor.agent(&scratch, &["--from", &trace]).end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("in use by another agent"), "{log}");
    first.signal("INT");
    assert_eq!(first.end().0, Some(130));
}
