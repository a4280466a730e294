//! A live agent on a loop device: its counts are fio's, also while taps change.

use std::fs;
use std::process::{Child, Command, Stdio};

use weir_model::Value;
use weir_testing::LoopDisk;
use weir_wire::{Note, SELF_TEST};

use super::monitor::{Agent, Monitor, with_rights, wrong_clock};
use crate::live::{watchable, watched_disk};
use crate::support::{Scratch, all_but_missed, run, skipped};

/// A loop device and an agent that observes it.
struct TestBench {
    disk: LoopDisk,
    monitor: Monitor,
    agent: Agent,
    // Removed after the agent has ended.
    _scratch: Scratch,
}

impl TestBench {
    /// Returns `None` and logs the reason if `test` is skipped.
    fn new(test: &str, monitor: Monitor) -> Option<TestBench> {
        let disk = watched_disk(test)?;
        let scratch = Scratch::new();
        let mut agent = monitor.agent(&scratch, &["--device", disk.path()]);
        // Its reads are requests of the disk, too.
        monitor.until("the self-test has ended", |received| {
            received.notes.iter().any(|n| n.counter == "self_test")
        });
        // Its programs and tables are released with it.
        let descriptors = format!("/proc/{}/fd", agent.child().id());
        let of_bpf = fs::read_dir(descriptors)
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .filter(|target| target.to_string_lossy().contains("bpf"));
        assert_eq!(of_bpf.count(), 0, "descriptors after the self-test");
        Some(TestBench {
            disk,
            monitor,
            agent,
            _scratch: scratch,
        })
    }

    fn started(&self, channel: u64) {
        self.monitor.until("a channel runs", |received| {
            assert_eq!(received.failed.get(&channel), None);
            received.started.contains_key(&channel)
        });
    }

    /// Starts direct random reads and writes of `mebibytes`, 4 KiB each, at no more than `iops` per
    /// second.
    fn load(&self, mebibytes: u32, iops: u32) -> Child {
        let options = "--name=load --output-format=json --rw=randrw --bs=4k --direct=1 \
                       --norandommap --randrepeat=1 --ioengine=libaio --iodepth=4";
        Command::new("fio")
            .arg(format!("--filename={}", self.disk.path()))
            .args([
                "--size=40M".to_owned(),
                format!("--io_size={mebibytes}M"),
                format!("--rate_iops={iops}"),
            ])
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Waits until the agent has reported all events up to now and to the end of this second.
    fn settle(&self) {
        let now = self.monitor.now();
        self.monitor.until("time has come", |received| {
            received.reached > now + 1_200_000_000
        });
    }
}

/// The number of reads and of writes that fio completed.
fn made(load: Child) -> [u64; 2] {
    let output = load.wait_with_output().unwrap();
    assert!(output.status.success());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    ["read", "write"].map(|way| json["jobs"][0][way]["total_ios"].as_u64().unwrap())
}

/// Asserts that as many reads and writes were reported as fio completed.
fn assert_reported(reported: [u64; 2], made: [u64; 2]) {
    let fits = |n: usize| all_but_missed(reported[n], made[n]);
    assert!(fits(0) && fits(1), "{reported:?} of {made:?}");
}

/// Reads and writes of 4 KiB that a channel reported.
fn reported(monitor: &Monitor, channel: u64) -> [u64; 2] {
    let received = monitor.received();
    let rows = received.rows.get(&channel).map_or(&[][..], Vec::as_slice);
    let count = |op: &str| {
        let wanted = [Value::text(op), Value::Int(4096)];
        rows.iter().filter(|(_, v)| v[..2] == wanted).count() as u64
    };
    ["r", "w"].map(count)
}

#[test]
fn a_live_agent_sends_each_request_once_while_taps_change() {
    let test = "a_live_agent_sends_each_request_once_while_taps_change";
    let Some(bench) = TestBench::new(test, Monitor::start()) else {
        return;
    };
    let monitor = &bench.monitor;
    monitor.run(1, "select op, bytes from IO");
    bench.started(1);
    let load = bench.load(192, 1_500);
    // Each query has different demands on the tap, so the tap is replaced under load, and replaced
    // again when no query needs those columns any more.
    for (channel, query) in [
        (
            2,
            "select sector, latency, in_flight from IO where op = 'w'",
        ),
        (3, "select op, bytes, req_id from IOstream where type = 'Q'"),
    ] {
        monitor.run(channel, query);
        bench.started(channel);
        monitor.until("rows of the load have arrived", |received| {
            received.count(channel) > 0
        });
    }
    monitor.end(2);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let made = made(load);
    bench.settle();
    assert_reported(reported(monitor, 1), made);
    let handovers = |received: &super::monitor::ReceivedMessages| {
        let notes = received.notes.iter().filter(|n| n.counter == "handovers");
        notes.map(|n| n.total).max().unwrap_or(0)
    };
    monitor.until("the handovers are reported", |received| {
        handovers(received) >= 2
    });
    bench.agent.signal("TERM");
    let (code, log) = bench.agent.end();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn groups_made_in_the_kernel_are_those_of_the_rows_though_clocks_differ() {
    let test = "groups_made_in_the_kernel_are_those_of_the_rows_though_clocks_differ";
    let monitor = Monitor::with_clock(wrong_clock::<-1370, 300>);
    let Some(bench) = TestBench::new(test, monitor) else {
        return;
    };
    let monitor = &bench.monitor;
    let from = "from IO [range 1 s slide 1 s] where sectors = 8 group by op";
    monitor.run(1, &format!("Rstream(select op, count(*) {from})"));
    // The kernel has no room for the state of this query.
    monitor.run(
        2,
        &format!("Rstream(select op, count(*), median(latency) {from})"),
    );
    bench.started(1);
    bench.started(2);
    // The first whole interval begins at the start that the agent reports.
    let begin = *monitor.received().started.values().max().unwrap();
    monitor.until("that time has come", |received| received.reached > begin);
    let made = made(bench.load(40, 1_500));
    bench.settle();
    let received = monitor.received();
    let counts = |channel: u64| {
        let mut counts = std::collections::BTreeMap::new();
        for (ts, values) in &received.rows[&channel] {
            let (Value::Text(op), Value::Int(count)) = (values[0].clone(), values[1].clone())
            else {
                panic!("{values:?}");
            };
            assert_eq!(ts % 1_000_000_000, 0, "at the monitor's seconds");
            assert_eq!(counts.insert((*ts, op.to_string()), count), None);
        }
        counts
    };
    let (kernel, rows) = (counts(1), counts(2));
    for counts in [&kernel, &rows] {
        let sum = |op: &str| {
            let of = counts.iter().filter(|((_, of), _)| of == op);
            of.map(|(_, count)| *count as u64).sum::<u64>()
        };
        assert_reported(["r", "w"].map(sum), made);
    }
    for (group, count) in &rows {
        // The end of an interval is known to within some microseconds.
        let folded = kernel.get(group).copied().unwrap_or(0);
        assert!(
            (folded - count).abs() <= 10,
            "{group:?}: {folded} and {count}"
        );
    }
    drop(received);
    monitor.until("the groups are counted", |received| {
        received.notes.iter().any(|n| n.place == "engine IO#1")
    });
    bench.agent.signal("TERM");
    let (code, log) = bench.agent.end();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn a_relation_is_sent_completely_to_early_and_late_clients() {
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    // Relations need no privileges.
    let agent = monitor.agent(&scratch, &[]);
    // Other tests add and remove loop devices.
    let query = "select device, host from devices where device not like '/dev/loop%'";
    for round in 0..2 {
        let channels = [10 * round + 1, 10 * round + 2];
        for channel in channels {
            monitor.run(channel, query);
            monitor.until("the relation is there", |received| {
                assert!(received.failed.is_empty(), "{:?}", received.failed);
                let at = received.started.get(&channel);
                at.is_some_and(|at| received.reached > at + 1_000_000_000)
            });
        }
        let received = monitor.received();
        let reported = received.values(channels[0]);
        assert!(
            !reported.is_empty() && reported.iter().all(|row| row.contains("\"a\"")),
            "{reported:?}"
        );
        assert_eq!(reported, received.values(channels[1]));
        drop(received);
        // The tap ends with its last channel. The next tap reports each row once.
        channels.iter().for_each(|channel| monitor.end(*channel));
    }
    agent.signal("INT");
    agent.end();
}

/// Whether privileges can be dropped here; otherwise logs that `test` is skipped.
fn rights_can_be_taken(test: &str) -> bool {
    let can = with_rights(&[]).arg("true").status();
    let can = can.is_ok_and(|status| status.success());
    if !can {
        skipped(test, "setpriv cannot take rights away");
    }
    can
}

#[test]
fn an_agent_without_privileges_keeps_running_and_reports_it() {
    let test = "an_agent_without_privileges_keeps_running_and_reports_it";
    if !rights_can_be_taken(test) {
        return;
    }
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    let agent = monitor.agent_with(&scratch, &[]);
    monitor.until("the failed probe is reported", |received| {
        received.notes.iter().any(|n| n.counter == "probe_failed")
    });
    monitor.until("its self-test has failed", |received| {
        let failed = |n: &Note| n.counter == SELF_TEST && n.total == 2;
        received.notes.iter().any(failed)
    });
    monitor.run(1, "select op from IO");
    monitor.until("the query fails here", |received| {
        received.failed.contains_key(&1)
    });
    monitor.run(2, "select device from devices");
    monitor.until("a relation is sent", |received| received.count(2) > 0);
    agent.signal("TERM");
    let (_, log) = agent.end();
    assert!(
        log.contains("permission denied: CAP_BPF and CAP_PERFMON are missing"),
        "{log}"
    );
}

#[test]
fn the_doctor_reports_whether_the_monitor_is_reachable() {
    let monitor = Monitor::start();
    let fact = |address: &str| {
        let output = run(&["doctor", "--json", "--monitor", address]);
        let page: serde_json::Value = serde_json::from_str(&output.out).unwrap();
        let facts = page["facts"].as_array().unwrap().clone();
        let named = |fact: &&serde_json::Value| fact["name"] == "monitor";
        facts.iter().find(named).expect("a fact").clone()
    };
    let there = fact(&monitor.address());
    assert_eq!(there["status"], "ok", "{there}");
    let address = monitor.address();
    drop(monitor);
    let gone = fact(&address);
    assert_eq!(gone["status"], "degraded", "{gone}");
    assert!(
        gone["found"].as_str().unwrap().contains("refused"),
        "{gone}"
    );
}

/// The unit of the agent's service.
const UNIT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../packaging/weir-agent.service"
);

#[test]
fn the_rights_of_the_service_are_enough() {
    let test = "the_rights_of_the_service_are_enough";
    if !watchable(test) || !rights_can_be_taken(test) {
        return;
    }
    let unit = std::fs::read_to_string(UNIT).unwrap();
    let granted = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key));
        line.expect("the unit names its rights")
            .to_ascii_lowercase()
    };
    let ambient = granted("AmbientCapabilities=");
    assert_eq!(ambient, granted("CapabilityBoundingSet="));
    let names: Vec<&str> = ambient
        .split(' ')
        .map(|name| name.strip_prefix("cap_").expect("capabilities"))
        .collect();
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    let agent = monitor.agent_with(&scratch, &names);
    // The query also needs to know which VM has which disk open.
    monitor.run(1, "select op, vm, vdisk from IO");
    monitor.run(2, "select vm, vdisk from disks");
    for channel in [1, 2] {
        monitor.until("a channel runs", |received| {
            assert!(received.failed.is_empty(), "{:?}", received.failed);
            received.started.contains_key(&channel)
        });
    }
    let failures = |n: &&weir_wire::Note| n.counter == "probe_failed";
    assert_eq!(monitor.received().notes.iter().find(failures), None);
    agent.signal("TERM");
    agent.end();
}

#[test]
fn the_unit_keeps_the_agent_out_of_other_processes() {
    let unit = std::fs::read_to_string(UNIT).unwrap();
    let denied = unit
        .lines()
        .find_map(|l| l.strip_prefix("SystemCallFilter=~"));
    let denied: Vec<&str> = denied.expect("a list of denied calls").split(' ').collect();
    for call in [
        "process_vm_writev",
        "process_vm_readv",
        "ptrace",
        "pidfd_getfd",
    ] {
        assert!(denied.contains(&call), "{call}");
    }
}

#[test]
fn the_unit_is_sound() {
    let test = "the_unit_is_sound";
    let scratch = Scratch::new();
    let text = std::fs::read_to_string(UNIT).unwrap();
    // The binary is not installed on the machine where the unit is verified.
    let text = text.replace("/usr/bin/weir", env!("CARGO_BIN_EXE_weir"));
    let unit = scratch.write("weir-agent.service", &text);
    match Command::new("systemd-analyze")
        .args(["verify", "--man=no", &unit])
        .output()
    {
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && stderr.is_empty(), "{stderr}");
        }
        Err(why) => skipped(test, format!("systemd-analyze: {why}")),
    }
}
