//! The lifetime of a tap: nothing remains after it is killed, it runs without root, and it needs no
//! privileges once it is attached.
//!
//! The tests start this program again as a child that only holds a tap.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use weir_tap::{Tap, TapEvent, ebpf};

use crate::load::fio;
use crate::watch::{Watch, demand, only};
use crate::{bench, skip};
use weir_testing::run;

/// Set in a child: the device of the tap.
const DEVICE: &str = "WEIR_TEST_TAP_DEVICE";

/// The name of the child's test.
const CHILD: &str = "life::holds_a_tap_until_it_is_killed";

/// In a child: opens a tap, drops all privileges, counts reads, and prints the results. Otherwise
/// does nothing.
#[test]
fn holds_a_tap_until_it_is_killed() {
    let Ok(device) = std::env::var(DEVICE) else {
        return;
    };
    let demand = demand("IO", "op pdisk pid comm cgroup latency", Vec::new());
    let mut tap = ebpf::open(&[demand], &only(&device)).unwrap_or_else(|e| panic!("{e}"));
    ebpf::drop_privileges(ebpf::Files::Open).unwrap_or_else(|e| panic!("{e}"));
    println!("\nopen {}", rights());
    loop {
        if let TapEvent::Rows { batch, .. } =
            tap.next(Duration::from_millis(100)).expect("it goes on")
        {
            println!("rows {}", batch.len());
        }
    }
}

/// The effective and permitted capabilities of this thread.
fn rights() -> String {
    let status = fs::read_to_string("/proc/thread-self/status").expect("there is a status");
    let sets = status
        .lines()
        .filter(|l| l.starts_with("Cap") && !l.starts_with("CapBnd"));
    let sets: BTreeSet<&str> = sets.filter_map(|l| l.split_whitespace().nth(1)).collect();
    sets.into_iter().collect::<Vec<_>>().join(" ")
}

/// A child that holds a tap, with its first line.
struct Holder {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Holder {
    /// Starts it with `before` in front of the command; its first word is `open`, followed by its
    /// capabilities.
    fn start(device: &str, before: &[&str]) -> Result<(Holder, String), String> {
        let own = std::env::current_exe().expect("we are a program");
        let own = own.to_string_lossy().into_owned();
        let mut words: Vec<&str> = before.to_vec();
        words.extend([&own, "--exact", CHILD, "--nocapture", "--test-threads=1"]);
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .env(DEVICE, device)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", words[0]))?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut holder = Holder { child, lines };
        match holder.line("open") {
            Some(rights) => Ok((holder, rights)),
            None => {
                let stderr = holder.child.stderr.take().map(std::io::read_to_string);
                Err(stderr.and_then(Result::ok).unwrap_or_default())
            }
        }
    }

    /// The rest of the next line that begins with `word`.
    fn line(&mut self, word: &str) -> Option<String> {
        let lines = self.lines.by_ref().map_while(Result::ok);
        let mut rest = lines.filter_map(|l| l.strip_prefix(word).map(|r| r.trim().to_owned()));
        rest.next()
    }

    /// The ids that the kernel assigned to its programs, maps and links.
    fn ids(&self) -> BTreeSet<(String, u32)> {
        let folder = format!("/proc/{}/fdinfo", self.child.id());
        let files = fs::read_dir(folder).expect("it is alive").flatten();
        let texts = files.filter_map(|f| fs::read_to_string(f.path()).ok());
        let ids = texts.flat_map(|text| {
            let id = |line: &str| {
                let (name, value) = line.split_once(':')?;
                let known = ["prog_id", "map_id", "link_id"].contains(&name);
                known.then_some((name.to_owned(), value.trim().parse().ok()?))
            };
            text.lines().filter_map(id).collect::<Vec<_>>()
        });
        ids.collect()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended already, which is not an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All ids that exist in the kernel.
fn existing() -> BTreeSet<(String, u32)> {
    let named = |name: &'static str| move |id: u32| (name.to_owned(), id);
    let programs = ProgInfoIter::default().map(|p| p.id).map(named("prog_id"));
    let maps = MapInfoIter::default().map(|m| m.id).map(named("map_id"));
    let links = LinkInfoIter::default().map(|l| l.id).map(named("link_id"));
    programs.chain(maps).chain(links).collect()
}

#[test]
fn a_killed_tap_leaves_nothing_behind() {
    let Some(bench) = bench("a_killed_tap_leaves_nothing_behind", 64) else {
        return;
    };
    let (mut holder, _) = Holder::start(bench.disk.path(), &[]).unwrap();
    let held = holder.ids();
    let kinds: BTreeSet<&str> = held.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds.len(), 3, "programs, maps and links: {held:?}");
    assert!(held.is_subset(&existing()));
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    // The kernel frees them after an RCU grace period.
    let mut left = held;
    for _ in 0..100 {
        left = left.intersection(&existing()).cloned().collect();
        if left.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("still there: {left:?}");
}

#[test]
fn an_attached_tap_needs_no_rights() {
    let Some(bench) = bench("an_attached_tap_needs_no_rights", 64) else {
        return;
    };
    let (mut holder, rights) = Holder::start(bench.disk.path(), &[]).unwrap();
    assert_eq!(rights, "0000000000000000");
    fio(
        &bench.disk,
        "--direct=1 --ioengine=psync --rw=randread --bs=4k --io_size=4m --size=64m",
    );
    assert!(holder.line("rows").is_some(), "rows come without any right");
}

#[test]
fn a_user_with_two_capabilities_can_open_a_tap() {
    const TEST: &str = "a_user_with_two_capabilities_can_open_a_tap";
    let Some(bench) = bench(TEST, 64) else {
        return;
    };
    // CAP_PERFMON is 38, CAP_BPF 39.
    let unprivileged = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=-all,+cap_38,+cap_39",
        "--ambient-caps=+cap_38,+cap_39",
    ];
    let own = std::env::current_exe().expect("we are a program");
    let readable = run(
        unprivileged[0],
        &[&unprivileged[1..4], &["test", "-x", &own.to_string_lossy()]].concat(),
    );
    if let Err(why) = readable {
        skip::<()>(TEST, &why);
        return;
    }
    let (mut holder, rights) = Holder::start(bench.disk.path(), &unprivileged).unwrap();
    assert_eq!(rights, "0000000000000000");
    fio(
        &bench.disk,
        "--direct=1 --ioengine=psync --rw=randread --bs=4k --io_size=4m --size=64m",
    );
    assert!(holder.line("rows").is_some(), "rows come to a user");
}

#[test]
fn probes_without_demand_are_not_attached() {
    let Some(bench) = bench("probes_without_demand_are_not_attached", 64) else {
        return;
    };
    let mut nothing = demand("IO", "op latency", Vec::new());
    nothing.predicate.clauses.clear();
    let before = existing();
    let watch = Watch::start(vec![nothing], &only(bench.disk.path()));
    let during = existing();
    fio(
        &bench.disk,
        "--direct=1 --ioengine=psync --rw=randread --bs=4k --io_size=1m --size=64m",
    );
    let seen = watch.stop();
    assert_eq!(seen.rows[0].len(), 0);
    let more: Vec<_> = during.difference(&before).collect();
    assert!(more.is_empty(), "{more:?}");
}

#[test]
fn what_a_slow_consumer_loses_is_counted_as_such() {
    let Some(bench) = bench("what_a_slow_consumer_loses_is_counted_as_such", 64) else {
        return;
    };
    let demands = [demand("IO", "op", Vec::new())];
    let options = ebpf::LiveOptions {
        ring_bytes: 0,
        ..only(bench.disk.path())
    };
    let mut tap = ebpf::open(&demands, &options).unwrap_or_else(|e| panic!("{e}"));
    assert!(matches!(
        tap.next(Duration::ZERO),
        Ok(TapEvent::Heartbeat(_))
    ));
    // No reads while far more events occur than the smallest ring can store.
    let report = fio(
        &bench.disk,
        "--direct=1 --ioengine=io_uring --iodepth=32 --rw=randread --bs=4k --io_size=256m --size=64m",
    );
    let seen = Watch::read(tap, &demands).stop();
    let (rows, lost) = (
        seen.rows[0].len() as i64,
        seen.count("events_lost", None, None),
    );
    let unseen = seen.count("unseen", None, None);
    let merged = 256;
    assert!(lost > 0, "{:?}", seen.counts);
    assert_eq!(
        seen.count(
            "events_lost",
            Some("slow_consumer"),
            Some(bench.disk.path())
        ),
        lost
    );
    let sum = rows + lost + unseen;
    assert!(
        (report.read.ios - merged..=report.read.ios).contains(&sum),
        "{sum} of {}",
        report.read.ios
    );
}

#[test]
fn requests_beyond_a_small_table_are_emitted_without_times_and_counted() {
    let Some(bench) = bench(
        "requests_beyond_a_small_table_are_emitted_without_times_and_counted",
        64,
    ) else {
        return;
    };
    let demands = vec![demand("IO", "op service", Vec::new())];
    let options = ebpf::LiveOptions {
        requests_max: 8,
        ..only(bench.disk.path())
    };
    let watch = Watch::start(demands, &options);
    let report = fio(
        &bench.disk,
        "--direct=1 --ioengine=io_uring --iodepth=64 --rw=randread --bs=64k --io_size=64m --size=64m",
    );
    let seen = watch.stop();
    let rows = seen.all();
    let full = seen.count("requests_untracked", Some("table_full"), None);
    let timeless = rows.len() - rows.ints("service").len();
    assert!(full > 0, "{:?}", seen.counts);
    assert!(
        timeless > 0 && timeless as i64 <= full + 64,
        "{timeless}: {:?}",
        seen.counts
    );
    let unseen = seen.count("unseen", None, None);
    assert!(
        rows.len() as i64 + unseen <= report.read.ios && rows.len() as i64 + 64 >= report.read.ios
    );
}

#[test]
fn a_table_with_as_many_entries_as_requests_in_flight_has_one_for_each() {
    const TEST: &str = "a_table_with_as_many_entries_as_requests_in_flight_has_one_for_each";
    let Some(bench) = bench(TEST, 64) else {
        return;
    };
    let options = ebpf::LiveOptions {
        requests_max: 8,
        ..only(bench.disk.path())
    };
    let demands = vec![demand("IO", "op service in_flight", Vec::new())];
    let watch = Watch::start(demands, &options);
    let load = "--direct=1 --ioengine=io_uring --rw=randread --bs=4k --io_size=16m --size=64m";
    let deep = fio(&bench.disk, &format!("{load} --iodepth=8"));
    let single = fio(&bench.disk, &format!("{load} --iodepth=1"));
    let seen = watch.stop();
    let reads = deep.read.ios + single.read.ios;
    let rows = seen.all().with("op", "r");
    if rows.len() as i64 != reads {
        // A program that interrupts another one is not run: an entry remains.
        skip::<()>(TEST, "not every request was observed");
        return;
    }
    let untracked = seen.count("requests_untracked", Some("table_full"), None);
    assert_eq!(untracked, 0, "{:?}", seen.counts);
    assert_eq!(rows.ints("service").len(), rows.len());
    let depths = rows.ints("in_flight");
    assert_eq!(depths.len(), rows.len());
    assert!(depths.iter().all(|depth| (1..=8).contains(depth)));
    assert!(depths.iter().any(|depth| *depth > 4), "at a depth of 8");
    // An entry or a number in flight that remained would be seen here.
    let last = &depths[depths.len() - single.read.ios as usize / 2..];
    assert!(last.iter().all(|depth| *depth == 1));
}

#[test]
fn a_kernel_without_block_io_start_still_yields_requests_and_times() {
    let Some(bench) = bench(
        "a_kernel_without_block_io_start_still_yields_requests_and_times",
        64,
    ) else {
        return;
    };
    for scheduler in ["none", "mq-deadline"] {
        bench.disk.set("scheduler", scheduler).unwrap();
        let options = ebpf::LiveOptions {
            without: vec!["block_io_start".into()],
            ..only(bench.disk.path())
        };
        let demands = vec![demand(
            "recording",
            "type op pid comm wait service latency",
            Vec::new(),
        )];
        let watch = Watch::start(demands, &options);
        let report = fio(
            &bench.disk,
            "--direct=1 --ioengine=libaio --iodepth=8 --rw=randread --bs=4k --io_size=16m --size=64m",
        );
        let seen = watch.stop();
        assert!(
            seen.described[0].contains("block_rq_insert"),
            "{:?}",
            seen.described
        );
        let rows = seen.all().with("op", "r");
        let (asked, done) = (rows.with("type", "Q"), rows.with("type", "R"));
        let few = 64;
        assert!(
            asked.len() as i64 + few >= report.read.ios && asked.len() as i64 <= report.read.ios
        );
        assert!(done.len() <= asked.len() && done.len() + 64 >= asked.len());
        assert_eq!(done.ints("latency").len(), done.len(), "{scheduler}");
        assert!(
            done.texts("comm").contains(&"fio".to_string()),
            "{:?}",
            done.texts("comm")
        );
    }
}

#[test]
fn the_doctor_finds_a_host_where_the_other_tests_run_well() {
    let Some(bench) = bench("the_doctor_finds_a_host_where_the_other_tests_run_well", 16) else {
        return;
    };
    let own = ebpf::LiveOptions {
        devices: ebpf::DeviceChoice::Named(vec![bench.disk.path().into()]),
        ..ebpf::LiveOptions::default()
    };
    let trial = |facts: &[ebpf::Fact]| {
        let fact = facts.iter().find(|f| f.name == "completeness");
        fact.expect("there is a trial").clone()
    };
    let seen = trial(&ebpf::doctor(&own));
    assert!(seen.found.contains(bench.disk.path()), "{seen:?}");
    assert!(!seen.found.contains(", 0 test reads reported"), "{seen:?}");
    bench.disk.set("iostats", "0").unwrap();
    let facts = ebpf::doctor(&own);
    let status = |name: &str| facts.iter().find(|f| f.name == name).map(|f| f.status);
    for name in [
        "kernel",
        "type information (BTF)",
        "capabilities",
        "programs and tables",
    ] {
        assert_eq!(status(name), Some(ebpf::CheckStatus::Ok), "{facts:?}");
    }
    for stream in ebpf::streams::ALL {
        let name = format!("stream {}", stream.name);
        let fact = facts
            .iter()
            .find(|f| f.name == name)
            .expect("it is checked");
        let is_loaded = fact.found.starts_with("loaded in ");
        assert_eq!(is_loaded, fact.status == ebpf::CheckStatus::Ok, "{fact:?}");
    }
    assert_eq!(
        status("disk statistics"),
        Some(ebpf::CheckStatus::Degraded),
        "{facts:?}"
    );
    let silent = |f: &&ebpf::Fact| f.status != ebpf::CheckStatus::Ok && f.remedy.is_empty();
    assert_eq!(
        facts.iter().find(silent),
        None,
        "what is missing has a remedy"
    );
    let without = ebpf::LiveOptions {
        without: vec!["block_rq_complete".into()],
        ..own
    };
    let facts = ebpf::doctor(&without);
    let missing = facts
        .iter()
        .find(|f| f.name == "tracepoint block_rq_complete");
    assert_eq!(missing.map(|f| f.status), Some(ebpf::CheckStatus::Missing));
    let blind = trial(&facts);
    assert_eq!(blind.status, ebpf::CheckStatus::Degraded, "{blind:?}");
    assert!(blind.found.contains("16 test reads"), "{blind:?}");
    assert!(blind.found.contains(", 0 test reads reported"), "{blind:?}");
}
