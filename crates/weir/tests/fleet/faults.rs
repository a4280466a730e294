//! Killed processes, clients that do not read, full disks: afterwards the rows delivered plus those
//! counted equal the rows produced, and no row is duplicated.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use weir_testing::MemoryFolder;

use crate::field::{Field, REQUESTS, ended_well, requests};

#[test]
fn rows_that_a_killed_agent_had_not_sent_are_counted_as_lost() {
    const TEST: &str = "rows_that_a_killed_agent_had_not_sent_are_counted_as_lost";
    let Some(field) = Field::new(TEST, &["killed", "whole"], "") else {
        return;
    };
    let (killed, whole) = (field.replaying("killed"), field.replaying("whole"));
    field.until_delivered("killed", 1_000);
    killed.kill().unwrap();
    // The agent writes its tally before it sends the rows; its successor reports it.
    let produced = written_down(&field, "killed");
    assert!((1_000..REQUESTS).contains(&produced), "{produced} rows");
    let trace = field.fleet.file("successor.csv");
    fs::write(&trace, requests(REQUESTS, REQUESTS + 10)).unwrap();
    let options = ["--from", &trace, "--once"];
    let host = field.host("killed");
    let successor = field
        .fleet
        .agent("killed", host, field.address(), "", &options);
    ended_well(successor.unwrap());
    ended_well(whole);
    field.balanced(&[("killed", produced + 10), ("whole", REQUESTS)]);
}

/// How many times more requests than fit into a full spool and the memory.
const MANY: u64 = 20;

/// The number of rows that the killed process had produced, from its file (see `tally_file`).
fn written_down(field: &Field, host: &str) -> u64 {
    let folder = field.fleet.file(&format!("{host}/agent"));
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let tally = |path: &std::path::PathBuf| path.to_string_lossy().contains("/tally-");
    let lines: String = files
        .filter(tally)
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let produced = lines.lines().map(|line| {
        let field = line.split_whitespace().nth(1).unwrap();
        u64::from_str_radix(field, 16).unwrap()
    });
    produced.sum()
}

#[test]
fn a_killed_monitor_continues_from_its_checkpoint() {
    const TEST: &str = "a_killed_monitor_continues_from_its_checkpoint";
    let Some(mut field) = Field::new(TEST, &["a", "b"], "idle = \"60 s\"") else {
        return;
    };
    let agents = ["a", "b"].map(|name| field.replaying(name));
    field.until_delivered("a", 800);
    field.kill_monitor();
    sleep(Duration::from_millis(700));
    field.restart_monitor();
    // A second time while agents reconnect, and a third time after that.
    sleep(Duration::from_millis(300));
    field.kill_monitor();
    field.restart_monitor();
    // If no processor is free, the monitor may be killed before it has stored that the agents
    // joined. Rows that they had sent before are late then.
    field.until_reported("a", 2_000);
    field.kill_monitor();
    field.restart_monitor();
    agents.into_iter().for_each(ended_well);
    let books = field.balanced(&[("a", REQUESTS), ("b", REQUESTS)]);
    for host in ["a", "b"] {
        assert_eq!(books[host].lost, 0, "{books:?}");
    }
}

#[test]
fn a_reader_that_stops_reading_hurts_only_itself() {
    const TEST: &str = "a_reader_that_stops_reading_hurts_only_itself";
    let settings = "[limits]\nclient_queue = \"64 KiB\"\n";
    let Some(field) = Field::new(TEST, &["a"], settings) else {
        return;
    };
    let watch = ["fleet", "watch", "rows", "--format", "csv"];
    let mut stuck = field.fleet.command(field.monitor(), &watch);
    // Its output is not read, so it soon stops reading as well.
    let stuck = stuck.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut stuck = stuck.unwrap();
    let agent = field.replaying("a");
    ended_well(agent);
    let books = field.balanced(&[("a", REQUESTS)]);
    assert_eq!(books["a"].lost, 0, "{books:?}");
    stuck.kill().unwrap();
    stuck.wait().unwrap();
}

#[test]
fn what_a_full_spool_disk_does_not_take_is_counted() {
    const TEST: &str = "what_a_full_spool_disk_does_not_take_is_counted";
    let Some(field) = Field::new(TEST, &["a", "b"], "idle = \"1 s\"") else {
        return;
    };
    let small = MemoryFolder::new(1).unwrap();
    // Another file fills the disk except for a few pages.
    fs::write(small.file("filled"), vec![0; (1 << 20) - (32 << 10)]).unwrap();
    let settings = format!(
        "[uplink]\nmemory = \"256 KiB\"\nspool = \"16 MiB\"\nspool_directory = \"{}\"\n",
        small.file("spool")
    );
    let a = field.replaying_with("a", field.address(), &settings, MANY);
    let b = field.replaying("b");
    field.until_delivered("a", 300);
    field.host("a").cut().unwrap();
    // The watermark advances without it.
    field.until_delivered("b", 3_000);
    field.host("a").mend().unwrap();
    ended_well(a);
    ended_well(b);
    let books = field.balanced(&[("a", MANY * REQUESTS), ("b", REQUESTS)]);
    assert!(books["a"].lost > 0, "{books:?}");
    // The spool is removed after the agent has ended, and before its disk.
    fs::remove_file(small.file("filled")).unwrap();
    let _ = fs::remove_dir_all(small.path().join("spool"));
}
