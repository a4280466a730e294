//! One host of a fleet: its name, wherever its rows and groups are made, and the count of lost rows
//! when its agent is killed.

use std::fs;
use std::process::{Command, Stdio};

use super::processes::{Monitor, Process, dealt, until};
use crate::live::watched_disk;
use crate::support::DeviceLink;

/// Reads of 8 KiB are counted; reads of 4 KiB show that the agents count.
const COUNTED: u64 = 300;

/// Reads `count` blocks of a disk with direct I/O.
fn read(disk: &str, block: &str, count: u64) {
    let status = Command::new("dd")
        .args([format!("if={disk}"), "of=/dev/null".to_owned()])
        .args([format!("bs={block}"), format!("count={count}")])
        .arg("iflag=direct")
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

/// A query whose groups the kernel makes, with output to a file.
fn query(name: &str, condition: &str) -> String {
    format!(
        "[[query]]\nname = \"{name}\"\n\
         text = \"Rstream(select host, count(*) from IO [range 1 s slide 1 s] \
         where {condition} group by host) every 1 s\"\n\
         [[query.sink]]\nfile = \"{name}.csv\"\n"
    )
}

#[test]
fn groups_made_in_the_kernel_are_of_the_agent_and_not_of_the_system() {
    let test = "groups_made_in_the_kernel_are_of_the_agent_and_not_of_the_system";
    let Some(disk) = watched_disk(test) else {
        return;
    };
    let link = DeviceLink::new(&disk, "fleet");
    let queries = [
        query("seen", "bytes = 4096"),
        query("all", "bytes = 8192"),
        query("one", "bytes = 8192 and host = 'l9'"),
        // The monitor does not know the links of a host; its agent does.
        query(
            "linked",
            &format!("bytes = 8192 and pdisk = '{}'", link.path()),
        ),
    ];
    let monitor = Monitor::configured(&queries.concat());
    // Two agents on one system, neither named like the system.
    let agents = ["l8", "l9"].map(|host| {
        let state = monitor.home.path().join(host);
        let args = ["--host", host, "--state", state.to_str().unwrap()];
        let watch = ["--device", disk.path()];
        Process::start(&[&["agent"][..], &monitor.named(), &args, &watch].concat())
    });
    let counts = |name: &str| {
        let path = monitor.home.path().join(format!("state/{name}.csv"));
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut sums = std::collections::BTreeMap::new();
        // The last line may be incomplete.
        let whole = text.split_inclusive('\n').filter(|l| l.ends_with('\n'));
        for line in whole.skip(1) {
            let mut values = line.trim_end().split(',').skip(1);
            let host = values.next().unwrap().to_owned();
            let count: u64 = values.next().unwrap().parse().unwrap();
            *sums.entry(host).or_insert(0) += count;
        }
        sums.into_iter().collect::<Vec<(String, u64)>>()
    };
    until("both agents count", || {
        read(disk.path(), "4k", 10);
        counts("seen").len() == 2
    });
    read(disk.path(), "8k", COUNTED);
    let of = |host: &str| (host.to_owned(), COUNTED);
    until("all is counted", || {
        let sums = counts("all");
        sums.iter().map(|(_, count)| count).sum::<u64>() == 2 * COUNTED
    });
    assert_eq!(counts("all"), [of("l8"), of("l9")]);
    until("those of the linked disk are counted", || {
        counts("linked") == [of("l8"), of("l9")]
    });
    until("those of one host are counted", || {
        counts("one") == [of("l9")]
    });

    // Relations of the inventory have the same host names.
    let hosts = "select host, count(*) from devices group by host";
    monitor.place("devices", hosts);
    until("both hosts are in the relation", || {
        let held = monitor.holds("devices");
        held.contains(",l8,") && held.contains(",l9,")
    });
    // The kernel may not have run weir's program for a read, which is degraded.
    until("the self-tests are reported", || {
        let listed = monitor.run(&["fleet", "hosts", "--json"]).fine();
        let hosts: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
        let results = hosts.iter().filter_map(|host| host["self_test"].as_str());
        results.filter(|r| ["ok", "degraded"].contains(r)).count() == 2
    });
    let listed = monitor.run(&["fleet", "hosts"]).fine();
    assert!(listed.contains("SELF-TEST"), "{listed}");
    for mut agent in agents {
        agent.signal("-TERM");
        let (code, printed) = agent.end();
        assert_eq!(code, Some(0), "{printed}");
    }
    until("hosts that have ended are not behind", || {
        let listed = monitor.run(&["fleet", "hosts", "--json"]).fine();
        let hosts: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
        let ended = |host: &serde_json::Value| host["state"] == "ended" && host["lag_ns"].is_null();
        hosts.len() == 2 && hosts.iter().all(ended)
    });
}

#[test]
fn requests_of_an_open_slide_are_counted_as_lost_when_the_agent_is_killed() {
    let monitor = Monitor::start();
    let (all, _) = dealt(&monitor.home, 300);
    let groups = "select op, count(*) from IO [range 1 hour slide 1 hour] group by op";
    let args = [
        "query",
        "--standing",
        "--name",
        "groups",
        "--for",
        "1ms",
        "--place",
        "partials",
    ];
    let placed = monitor.run(&[&args[..], &[groups]].concat());
    assert_eq!(placed.code, 0, "{}", placed.err);
    monitor.place("rows", "select count(*) from IO");
    let mut agents = monitor.agents(std::slice::from_ref(&all));
    until("all requests have been seen", || {
        monitor.holds("rows").trim_end().ends_with(",300")
    });
    agents[0].signal("-KILL");
    agents[0].end();
    let query = |name: &str| {
        let queries = monitor.queries();
        let found = queries.into_iter().find(|q| q["name"] == name);
        found.expect("it stands")
    };
    assert_eq!(query("groups")["rows_lost"], 0, "it may be alive");
    // The next agent of the host has the count. Its own trace begins far in the future.
    let state = monitor.home.path().join("a");
    let args = [
        "--host",
        "a",
        "--state",
        state.to_str().unwrap(),
        "--from",
        &all,
    ];
    let far = ["--shift", "1000000h"];
    let _next = Process::start(&[&["agent"][..], &monitor.named(), &args, &far].concat());
    until("what was lost is counted", || {
        query("groups")["rows_lost"] == 300
    });
    assert_eq!(query("rows")["rows_lost"], 0);
    let watch = ["fleet", "watch", "groups", "--for", "300ms", "--final"];
    let printed = monitor.run(&watch);
    assert!(printed.err.contains("300 requests lost"), "{}", printed.err);
}

/// Without the privileges for it, the stream has no rows of this host.
#[test]
fn an_agent_of_a_recording_is_asked_for_a_stream_of_its_host() {
    let monitor = Monitor::start();
    let home = &monitor.home;
    let (_, parts) = dealt(home, 60);
    let agents = monitor.agents(&parts[..1]);
    let is_up = || {
        let hosts = monitor.run(&["fleet", "hosts", "--json"]).fine();
        hosts.contains("\"state\":\"up\"")
    };
    // The monitor knows such a stream from its agents.
    until("the agent is connected", is_up);
    monitor.place("all", "select count(*) from IO");
    monitor.place("paths", "select pdisk, path from IOpath");
    until("the recording is replayed", || {
        monitor
            .holds("all")
            .lines()
            .any(|line| line.ends_with(",20"))
    });
    assert!(is_up());
    assert!(!agents[0].printed().contains("panicked"));
}
