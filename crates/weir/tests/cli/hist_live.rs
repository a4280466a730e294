//! `weir hist` on a loop device under fio: in the background and in the foreground.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testing::{LoopDisk, wait_until};

use crate::live::watched_disk;
use crate::support::{CommandOutput, Scratch, all_but_missed, interrupt, weir};

/// A loop device and a directory for the collector of one test.
struct Host {
    disk: LoopDisk,
    scratch: Scratch,
}

/// The requests that fio completed, by direction.
#[derive(Debug, PartialEq, Eq)]
struct Load {
    reads: u64,
    writes: u64,
}

impl Load {
    /// Asserts that it counts what fio completed, except completions that no program can observe.
    fn assert_of(&self, made: &Load) {
        let fits =
            all_but_missed(self.reads, made.reads) && all_but_missed(self.writes, made.writes);
        assert!(fits, "{self:?} of {made:?}");
    }
}

impl Host {
    /// Returns `None` and logs the reason if `test` is skipped.
    fn new(test: &str) -> Option<Host> {
        Some(Host {
            disk: watched_disk(test)?,
            scratch: Scratch::new(),
        })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = weir(&[&["hist"], args].concat());
        command.env("RUNTIME_DIRECTORY", self.scratch.path());
        command
    }

    fn hist(&self, args: &[&str]) -> CommandOutput {
        CommandOutput::of(self.command(args).output().unwrap())
    }

    /// The same, of this test's disk only.
    fn of_disk(&self, args: &[&str]) -> CommandOutput {
        self.hist(&[args, &["-i", self.disk.path()]].concat())
    }

    /// Direct random reads and writes, one request at a time.
    fn load(&self) -> Load {
        let options = "--name=load --output-format=json --rw=randrw --bs=4k --direct=1 --size=4M \
                       --norandommap --randrepeat=1 --ioengine=psync";
        let output = Command::new("fio")
            .arg(format!("--filename={}", self.disk.path()))
            .args(options.split_whitespace())
            .output()
            .unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{stdout}");
        let report: Value = serde_json::from_str(&stdout[stdout.find('{').unwrap()..]).unwrap();
        let ios = |direction: &str| report["jobs"][0][direction]["total_ios"].as_u64().unwrap();
        Load {
            reads: ios("read"),
            writes: ios("write"),
        }
    }

    /// Counts of a metric in the output of `-j`.
    fn counts(&self, metric: &str) -> Load {
        let stdout = self.of_disk(&["-p", metric, "-j"]).fine();
        let line: Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
        let count = |op: &str| {
            let of = &line["histograms"][metric][op]["count"];
            of.as_u64().unwrap_or(0)
        };
        assert_eq!(count("all"), count("r") + count("w"), "{line}");
        Load {
            reads: count("r"),
            writes: count("w"),
        }
    }

    /// The collector processes of this test.
    fn collectors(&self) -> Vec<PathBuf> {
        let own = format!("RUNTIME_DIRECTORY={}", self.scratch.path().display());
        let is_ours = |process: &PathBuf| {
            let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
            let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            words(read("cmdline")).split('\0').nth(1) == Some("hist-collector")
                && words(read("environ")).split('\0').any(|v| v == own)
        };
        processes().filter(is_ours).collect()
    }

    /// The kernel programs that the collector holds.
    fn programs(&self) -> BTreeSet<u32> {
        self.collectors().iter().flat_map(|p| programs(p)).collect()
    }

    /// Waits until no collector exists any more.
    fn until_gone(&self) {
        wait_until("no collector runs", || self.collectors().is_empty());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // This runs after a failed test as well.
        let _ = self.command(&["-x"]).output();
    }
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.map(|e| e.path()).filter(|path| {
        let name = path.file_name().and_then(|n| n.to_str());
        name.is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// The ids of the kernel programs that a process holds.
fn programs(process: &Path) -> BTreeSet<u32> {
    let open = fs::read_dir(process.join("fdinfo")).into_iter().flatten();
    let read = open
        .flatten()
        .filter_map(|e| fs::read_to_string(e.path()).ok());
    let numbers = read.flat_map(|text| {
        let number = |line: &str| line.strip_prefix("prog_id:")?.trim().parse().ok();
        text.lines().filter_map(number).collect::<Vec<u32>>()
    });
    numbers.collect()
}

/// Asserts that no process holds these programs any more, so the kernel does not run them. The
/// files of a killed process are closed shortly after its memory is freed.
fn detached(programs_before: &BTreeSet<u32>) {
    assert!(!programs_before.is_empty(), "something was attached");
    let started = Instant::now();
    for process in processes() {
        loop {
            let held = programs(&process);
            if held.is_disjoint(programs_before) {
                break;
            }
            let late = started.elapsed() > Duration::from_secs(60);
            assert!(!late, "{}: {held:?}", process.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn what_is_collected_is_what_fio_did_until_it_is_stopped() {
    let Some(host) = Host::new("what_is_collected_is_what_fio_did_until_it_is_stopped") else {
        return;
    };
    let output = host.of_disk(&["-s"]);
    assert!(
        output.err.contains("until") && output.out.is_empty(),
        "{}",
        output.err
    );
    output.fine();
    let made = host.load();
    for metric in ["ioLength", "latency", "service", "outstandingIOs"] {
        host.counts(metric).assert_of(&made);
    }
    let csv = host.of_disk(&["-p", "all", "-c"]).fine();
    let sections: Vec<&str> = csv.split("Histogram: ").skip(1).collect();
    assert_eq!(sections.len(), 16, "{csv}");
    for section in &sections {
        let lines: Vec<&str> = section.lines().collect();
        let count: u64 = lines[4].strip_prefix("count,").unwrap().parse().unwrap();
        let rows = lines[6..].iter().map(|row| row.split_once(',').unwrap().0);
        let sum: u64 = rows.map(|n| n.parse::<u64>().unwrap()).sum();
        assert_eq!(sum, count, "{section}");
        assert!(lines[0].contains(&format!("({})", host.disk.name())));
    }
    let length = "IO lengths of Read commands,virtual machine worldGroupID,0,";
    assert!(sections[1].starts_with(length), "{}", sections[1]);
    let reads = host.counts("ioLength").reads;
    assert!(sections[1].contains(&format!("count,{reads}\n")));

    let list = host.hist(&["-l", "-j"]).fine();
    let of = |list: &str, key: &str| {
        let mut lines = list
            .lines()
            .map(|l| serde_json::from_str::<Value>(l).unwrap());
        lines.find(|l| l["pdisk"] == host.disk.path()).unwrap()[key].clone()
    };
    let (since, until) = (
        of(&list, "collected")["since_ns"].as_i64().unwrap(),
        of(&list, "collected")["until_ns"].as_i64().unwrap(),
    );
    let minutes = (until - since) as f64 / 60e9;
    assert!((29.0..31.0).contains(&minutes), "{minutes} minutes");
    let number = of(&list, "disk_id").to_string();
    let by_number = host.hist(&["-p", "ioLength", "-j", "-i", &number]).fine();
    assert!(by_number.contains(host.disk.path()), "{by_number}");

    host.of_disk(&["-r"]).fine();
    let made = host.load();
    host.counts("ioLength").assert_of(&made);

    let programs = host.programs();
    host.hist(&["-x"]).fine();
    detached(&programs);
    host.until_gone();
    let list = host.hist(&["-l", "-j"]).fine();
    assert_eq!(of(&list, "collected"), Value::Null);
    let kept = host.of_disk(&["-p", "ioLength", "-j"]);
    assert!(kept.err.contains("of a stopped one"), "{}", kept.err);
    assert!(
        kept.fine().contains("\"count\":"),
        "it still can be printed"
    );
}

#[test]
fn it_stops_by_itself() {
    let Some(host) = Host::new("it_stops_by_itself") else {
        return;
    };
    host.of_disk(&["-s", "--for", "3s"]).fine();
    let programs = host.programs();
    let done = host.load();
    host.until_gone();
    detached(&programs);
    let counted = host.counts("ioLength");
    // On a busy host the time may pass before fio ends.
    assert!(
        counted.reads <= done.reads && counted.writes <= done.writes,
        "{counted:?}"
    );
    assert!(counted.reads > 0, "{done:?}");
}

#[test]
fn a_killed_collector_leaves_nothing_and_the_next_one_starts() {
    let Some(host) = Host::new("a_killed_collector_leaves_nothing_and_the_next_one_starts") else {
        return;
    };
    host.of_disk(&["-s", "--for", "forever"]).fine();
    let programs = host.programs();
    let [collector] = &host.collectors()[..] else {
        panic!("one collector");
    };
    let pid = collector.file_name().unwrap().to_str().unwrap();
    let killed = Command::new("kill").args(["-9", pid]).status().unwrap();
    assert!(killed.success());
    host.until_gone();
    detached(&programs);
    // Its directory is free when the last of its files is removed.
    let started = Instant::now();
    let list = loop {
        let list = host.hist(&["-l"]);
        if list.err.contains("was killed") {
            break list;
        }
        let late = started.elapsed() > Duration::from_secs(60);
        assert!(!late, "{}", list.err);
    };
    assert!(!list.fine().contains("until stopped"));
    let script = host.of_disk(&["-p", "all", "-c"]);
    assert!(script.err.contains("with `weir hist -s`"), "{}", script.err);
    let none = host.hist(&["-x"]);
    assert!(
        none.err.contains("no collection is running"),
        "{}",
        none.err
    );
    host.of_disk(&["-s", "--for", "forever"]).fine();
    assert!(host.hist(&["-l"]).fine().contains("until stopped"));
    host.hist(&["-x"]).fine();
    host.until_gone();
}

#[test]
fn several_starts_share_one_collector() {
    let Some(host) = Host::new("several_starts_share_one_collector") else {
        return;
    };
    let both = [0; 2].map(|_| {
        let mut start = host.command(&["-s", "-w", "one-that-comes-later"]);
        start.stderr(Stdio::piped()).spawn().unwrap()
    });
    for start in both {
        CommandOutput::of(start.wait_with_output().unwrap()).fine();
    }
    assert_eq!(host.collectors().len(), 1);
    let one = host.programs();
    host.hist(&["-s", "-w", "another"]).fine();
    let two = host.programs();
    assert!(
        two.len() > one.len() && two.is_superset(&one),
        "{one:?} {two:?}"
    );
    let twice = host.hist(&["-s"]);
    assert_eq!(twice.code, 2, "{}", twice.err);
    assert!(twice.err.contains("counted twice"), "{}", twice.err);
    host.hist(&["-x", "-w", "one-that-comes-later"]).fine();
    detached(&one);
    assert_eq!(host.collectors().len(), 1, "the other goes on");
    host.hist(&["-x"]).fine();
    host.until_gone();
}

#[test]
fn in_the_foreground_it_counts_until_a_signal() {
    let Some(host) = Host::new("in_the_foreground_it_counts_until_a_signal") else {
        return;
    };
    let args = ["-i", host.disk.path(), "-j"];
    let mut command = host.command(&args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let mut word = String::new();
    let mut words = BufReader::new(child.stderr.take().unwrap());
    words.read_line(&mut word).unwrap();
    assert!(word.contains("Ctrl-C"), "{word}");
    let held = programs(&process);
    let done = host.load();
    interrupt(&child);
    let output = CommandOutput::of(child.wait_with_output().unwrap());
    assert_eq!(output.code, 130, "{}", output.err);
    detached(&held);
    let line: Value = serde_json::from_str(output.out.lines().next().unwrap()).unwrap();
    let count = |op: &str| line["histograms"]["ioLength"][op]["count"].as_u64();
    assert_eq!(
        (count("r"), count("w")),
        (Some(done.reads), Some(done.writes))
    );
    for by in ["device", "process", "cgroup"] {
        let output = host.of_disk(&["--for", "200ms", "--by", by]);
        assert_eq!(output.code, 0, "{by}: {}", output.err);
    }
}

#[test]
fn each_transfers_every_request() {
    let Some(host) = Host::new("each_transfers_every_request") else {
        return;
    };
    let args = ["-i", host.disk.path(), "-j", "--each", "0.5", "1"];
    let mut command = host.command(&args);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    // An interval ends with the first request after it.
    while child.try_wait().unwrap().is_none() {
        host.load();
    }
    let stdout = CommandOutput::of(child.wait_with_output().unwrap()).fine();
    let line: Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
    assert_eq!(line["pdisk"], host.disk.path());
    let count = |op: &str| line["histograms"]["ioLength"][op]["count"].as_u64();
    let (reads, writes) = (count("r").unwrap(), count("w").unwrap());
    assert_eq!(count("all"), Some(reads + writes));
    let args = ["--for", "3s", "-j", "--2d", "ioLength:latency"];
    let mut command = host.command(&[&args[..], &["-i", host.disk.path()]].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        host.load();
    }
    let stdout = CommandOutput::of(child.wait_with_output().unwrap()).fine();
    let line: Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
    for cell in line["cells"].as_array().unwrap() {
        assert_eq!((&cell[0], &cell[1]), (&4096.into(), &4096.into()), "{line}");
    }
}
