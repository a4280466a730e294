//! `weir tune`: errors that change nothing, a trial under load, and the restoration of settings.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use serde_json::Value;
use weir_testing::{DiskLoad, LoopDisk, PacedLoad, is_root};

use crate::live::{loop_disk, watchable};
use crate::support::{Scratch, interrupt, run, skipped, weir};

/// The settings of a queue, as they are read.
fn settings(disk: &LoopDisk) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for folder in ["queue", "queue/iosched"] {
        let entries = fs::read_dir(disk.sysfs().join(folder))
            .into_iter()
            .flatten();
        for path in entries.map(|entry| entry.unwrap().path()) {
            if let Ok(text) = fs::read_to_string(&path) {
                found.insert(path.to_string_lossy().into_owned(), text);
            }
        }
    }
    assert!(found.len() > 10, "{found:?}");
    found
}

/// A loop device on which a trial can run; otherwise logs that `test` is skipped.
fn tunable(test: &str) -> Option<LoopDisk> {
    if !is_root() {
        skipped(test, "needs root");
        return None;
    }
    watchable(test).then(|| loop_disk(test)).flatten()
}

/// Direct reads at a fixed rate.
fn load(disk: &LoopDisk) -> PacedLoad {
    PacedLoad::start(DiskLoad {
        read: 100,
        write: 0,
        rate: 1_000,
        span: 32 << 20,
        ..DiskLoad::on(disk.path())
    })
}

/// Sequential reads through the page cache, whose requests read-ahead makes larger.
///
/// They have a fixed rate of bytes, so that the rate of requests depends on read-ahead and not on
/// the processor time that other programs leave. The file is opened again and again: it takes
/// its read-ahead from the device when it is opened.
struct BufferedReader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BufferedReader {
    /// 1 MiB is read within this time.
    const PERIOD: Duration = Duration::from_millis(50);

    fn start(disk: &LoopDisk) -> BufferedReader {
        let (stop, path) = (Arc::new(AtomicBool::new(false)), disk.path().to_owned());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while !stopped.load(Ordering::Relaxed) {
                let end = Instant::now() + Self::PERIOD;
                let mut file = fs::File::open(&path).unwrap();
                fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                for _ in 0..16 {
                    file.read_exact(&mut buffer).unwrap();
                }
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
            }
        });
        let thread = Some(thread);
        BufferedReader { stop, thread }
    }
}

impl Drop for BufferedReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()));
    }
}

const SHORT: [&str; 8] = [
    "--observe",
    "2s",
    "--block",
    "500ms",
    "--settle",
    "200ms",
    "--state",
    "STATE",
];

/// The arguments of a short trial.
fn trial<'a>(disk: &'a LoopDisk, state: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let short = SHORT.map(|arg| if arg == "STATE" { state } else { arg });
    let mut args = vec!["tune", "-i", disk.path(), "--try", "--seed", "1"];
    args.extend(short);
    args.extend(more);
    args
}

#[test]
fn errors_name_the_remedy_and_change_nothing() {
    for (args, expected) in [
        (
            &["tune", "-i", "nosuchdisk", "--for", "p99"][..],
            "no such disk",
        ),
        (&["tune", "-w", "nosuchvm", "--for", "p99"], "no such VM"),
        (
            &["tune", "--for", "p99"],
            "no disk; give one with -i, or a VM with -w",
        ),
        (&["tune", "-i", "x", "--for", "p98"], "invalid value 'p98'"),
        (&["tune", "-i", "x"], "--for <OBJECTIVE>"),
        (&["tune", "-i", "x", "--for", "p99", "--apply"], "--try"),
        (
            &["tune", "-i", "x", "--for", "p99", "--not-worse", "a"],
            "VM:METRIC=LIMIT%",
        ),
        (
            &["tune", "-i", "x", "--for", "p99", "--block", "1ms"],
            "from 500ms to 1h",
        ),
    ] {
        let output = run(args);
        assert_eq!(output.code, 2, "{args:?}: {}", output.err);
        assert!(output.err.contains(expected), "{args:?}: {}", output.err);
    }
    let test = "errors_name_the_remedy_and_change_nothing";
    let Some(disk) = loop_disk(test) else { return };
    let before = settings(&disk);
    let state = Scratch::new();
    let refused = |candidate: &str| {
        let more = ["--for", "p99", "--candidates", candidate];
        let output = run(&trial(&disk, &state.file("state"), &more));
        assert_eq!(output.code, 2, "{}", output.err);
        output.err
    };
    let error = refused("cfq");
    assert!(
        error.contains("scheduler `cfq` is not available"),
        "{error}"
    );
    assert!(refused("no_such_setting=1").contains("no setting `no_such_setting`"));
    if watchable(test) && is_root() {
        let output = run(&trial(&disk, &state.file("state"), &["--for", "iops"]));
        assert_eq!(output.code, 1, "{}", output.err);
        let idle = format!("{} is idle", disk.path());
        assert!(output.err.contains(&idle), "{}", output.err);
    }
    assert_eq!(settings(&disk), before);
}

#[test]
fn a_device_without_scheduler_is_an_error() {
    let devices = fs::read_dir("/sys/block").unwrap();
    let mut devices = devices.map(|entry| entry.unwrap().path());
    // A RAM disk of the kernel, zram or a stacked device.
    let Some(found) = devices.find(|path| !path.join("mq").exists()) else {
        return skipped(
            "a_device_without_scheduler_is_an_error",
            "this host has no device without a scheduler",
        );
    };
    let name = found.file_name().unwrap().to_str().unwrap();
    let output = run(&["tune", "-i", &format!("/dev/{name}"), "--for", "p99"]);
    assert_eq!(output.code, 2, "{}", output.err);
    // A device without a size is not known as a disk.
    let expected = ["has no scheduler", "no such disk"];
    assert!(
        expected.iter().any(|text| output.err.contains(text)),
        "{}",
        output.err
    );
}

#[test]
fn a_read_only_sysfs_is_an_error_and_changes_nothing() {
    let Some(disk) = tunable("a_read_only_sysfs_is_an_error_and_changes_nothing") else {
        return;
    };
    let (before, state) = (settings(&disk), Scratch::new());
    let load = load(&disk);
    // In a mount namespace of its own, as in a container.
    let script = "mount -o remount,ro,bind /sys && exec \"$0\" \"$@\"";
    let state = state.file("state");
    let args = trial(&disk, &state, &["--for", "p99", "--candidates", "none"]);
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_weir")])
        .args(&args)
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("sysfs is mounted read-only"), "{err}");
    load.stop().unwrap();
    assert_eq!(settings(&disk), before);
}

#[test]
fn a_disk_is_observed_without_any_change() {
    let Some(disk) = tunable("a_disk_is_observed_without_any_change") else {
        return;
    };
    let before = settings(&disk);
    let load = load(&disk);
    let args = ["tune", "-i", disk.path(), "--for", "p99", "--observe", "2s"];
    let report = run(&[&args[..], &["--json"]].concat()).fine();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["device"], disk.path());
    assert_eq!(report["trial"], Value::Null);
    assert!(report["observation"]["requests"].as_u64().unwrap() > 100);
    assert_eq!(report["relevance"][0]["setting"], "scheduler");
    // The load has one request in flight: there is no order to choose.
    assert_eq!(report["relevance"][0]["can_matter"], false, "{report}");
    let text = run(&args).fine();
    assert!(text.contains("scheduler      cannot matter"), "{text}");
    load.stop().unwrap();
    assert_eq!(settings(&disk), before);
}

#[test]
fn a_trial_finds_the_better_read_ahead_and_a_lease_restores_it() {
    let Some(disk) = tunable("a_trial_finds_the_better_read_ahead_and_a_lease_restores_it") else {
        return;
    };
    // Smaller requests are more requests.
    disk.set("read_ahead_kb", "128").unwrap();
    let before = settings(&disk);
    let (state, reader) = (Scratch::new(), BufferedReader::start(&disk));
    let state = state.file("state");
    let more = [
        "--for",
        "iops",
        "--candidates",
        "read_ahead_kb=4",
        "--rounds",
        "6",
        "--abort-factor",
        "1000000",
        "--apply",
        "--json",
    ];
    let mut command = weir(&trial(&disk, &state, &more));
    let mut child = command
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let errors = BufReader::new(child.stderr.take().unwrap());
    let mut lines = errors.lines().map(Result::unwrap);
    let expected = "weir: read_ahead_kb=4 is applied to";
    let mut seen = Vec::new();
    while !seen.iter().any(|line: &String| line.starts_with(expected)) {
        match lines.next() {
            Some(line) => seen.push(line),
            None => {
                let mut report = String::new();
                let mut output = child.stdout.take().unwrap();
                output.read_to_string(&mut report).unwrap();
                panic!("{seen:?} {report}");
            }
        }
    }
    drop(reader);
    let is_progress = |line: &String| line.starts_with("weir: round 1 of 6, at most");
    assert!(seen.iter().any(is_progress), "{seen:?}");
    // It is applied, and another trial of the disk is refused meanwhile.
    let path = disk.sysfs().join("queue/read_ahead_kb");
    assert_eq!(fs::read_to_string(&path).unwrap(), "4\n");
    let second = run(&trial(&disk, &state, &["--for", "p99"]));
    assert_eq!(second.code, 1, "{}", second.err);
    assert!(second.err.contains("another weir tune"), "{}", second.err);
    let restored = run(&["tune", "--restore", "--state", &state]);
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert!(
        restored.err.contains("has ended its lease"),
        "{}",
        restored.err
    );
    let mut report = String::new();
    let mut output = child.stdout.take().unwrap();
    output.read_to_string(&mut report).unwrap();
    let end: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{end:?}");
    assert_eq!(settings(&disk), before);
    let report: Value = serde_json::from_str(&report).unwrap();
    let trial = &report["trial"];
    assert_eq!(trial["advice"], "read_ahead_kb=4", "{report}");
    assert_eq!(trial["lease_s"], 3600.0, "{report}");
    let comparison = &trial["result"]["decision"]["comparisons"][0];
    assert!(comparison["change_low"].as_f64().unwrap() > 0.0, "{report}");
    let rule = trial["udev_rule"].as_str().unwrap();
    assert!(rule.ends_with("ATTR{queue/read_ahead_kb}=\"4\""), "{rule}");
    let blocks = trial["blocks"].as_array().unwrap();
    assert!(blocks.len() >= 3 * 3, "{}", blocks.len());
    let again = run(&["tune", "--restore", "--state", &state]).fine();
    assert_eq!(again, "nothing to restore\n");
}

/// Schedulers of the kernel that are not the present one.
fn others(disk: &LoopDisk) -> Vec<String> {
    let text = fs::read_to_string(disk.sysfs().join("queue/scheduler")).unwrap();
    let names = text
        .split_whitespace()
        .filter(|name| !name.starts_with('['));
    names.map(str::to_owned).collect()
}

/// A trial with a scheduler in its second block or later, and a line of its progress.
fn started(disk: &LoopDisk, state: &str, round: usize) -> Option<(Child, impl BufRead + use<>)> {
    let others = others(disk);
    if others.is_empty() {
        skipped("a trial of schedulers", "the kernel has one scheduler only");
        return None;
    }
    let candidates = others.join(",");
    let more = [
        "--for",
        "p99",
        "--candidates",
        &candidates,
        "--abort-factor",
        "1000000",
    ];
    let mut command = weir(&trial(disk, state, &more));
    let mut child = command
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let (expected, mut line) = (format!("weir: round {round} "), String::new());
    while !line.starts_with(&expected) {
        line.clear();
        assert!(
            errors.read_line(&mut line).unwrap() > 0,
            "the trial has ended"
        );
    }
    Some((child, errors))
}

#[test]
fn a_killed_trial_is_restored_and_changes_of_others_are_left() {
    let Some(disk) = tunable("a_killed_trial_is_restored_and_changes_of_others_are_left") else {
        return;
    };
    let (state, load) = (Scratch::new(), load(&disk));
    let state = state.file("state");
    let before = settings(&disk);
    let restore = || run(&["tune", "--restore", "--state", &state]);
    for round in [1, 2] {
        let Some((mut child, _)) = started(&disk, &state, round) else {
            return;
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let restored = restore();
        assert_eq!(restored.code, 0, "{}", restored.err);
        assert_eq!(settings(&disk), before);
    }
    let (mut child, _) = started(&disk, &state, 2).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let path = disk.sysfs().join("queue/read_ahead_kb");
    let own = fs::read_to_string(&path).unwrap();
    fs::write(&path, "64").unwrap();
    let restored = restore();
    assert_eq!(restored.code, 1, "{}", restored.err);
    let expected = "read_ahead_kb changed by another program";
    assert!(restored.err.contains(expected), "{}", restored.err);
    assert_eq!(fs::read_to_string(&path).unwrap(), "64\n");
    fs::write(&path, own).unwrap();
    assert_eq!(settings(&disk), before);
    load.stop().unwrap();
}

#[test]
fn the_next_start_restores_a_killed_trial() {
    let Some(disk) = tunable("the_next_start_restores_a_killed_trial") else {
        return;
    };
    let (state, load) = (Scratch::new(), load(&disk));
    let state = state.file("state");
    let before = settings(&disk);
    let Some((mut child, _)) = started(&disk, &state, 2) else {
        return;
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let args = [
        "tune",
        "-i",
        disk.path(),
        "--for",
        "p99",
        "--observe",
        "500ms",
        "--state",
        &state,
    ];
    let next = run(&args);
    assert_eq!(next.code, 0, "{}", next.err);
    assert!(
        next.err.contains("an earlier trial was killed"),
        "{}",
        next.err
    );
    assert_eq!(settings(&disk), before);
    load.stop().unwrap();
}

#[test]
fn a_signal_ends_a_trial_and_restores() {
    let Some(disk) = tunable("a_signal_ends_a_trial_and_restores") else {
        return;
    };
    let (state, load) = (Scratch::new(), load(&disk));
    let state = state.file("state");
    let before = settings(&disk);
    let Some((mut child, _errors)) = started(&disk, &state, 2) else {
        return;
    };
    interrupt(&child);
    let mut report = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut report)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(
        report.contains("Interrupted. The settings were restored."),
        "{report}"
    );
    assert_eq!(settings(&disk), before);
    assert!(!Path::new(&state).join(disk.name()).join("journal").exists());
    load.stop().unwrap();
}

#[test]
fn a_trial_without_requests_is_aborted_and_restored() {
    let Some(disk) = tunable("a_trial_without_requests_is_aborted_and_restored") else {
        return;
    };
    let (state, load) = (Scratch::new(), load(&disk));
    let before = settings(&disk);
    let others = others(&disk);
    let candidate = others.first().map_or("none", |name| name);
    let args = [
        "--for",
        "p99",
        "--candidates",
        candidate,
        "--abort-factor",
        "1000000",
        "--block",
        "30s",
    ];
    let state = state.file("state");
    let mut args = [&trial(&disk, &state, &[])[..], &args].concat();
    // The block of the short trial is replaced.
    let short = args.iter().position(|arg| *arg == "--block").unwrap();
    args.drain(short..short + 2);
    let mut command = weir(&args);
    let mut child = command
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("weir: round 1 ") {
        line.clear();
        assert!(
            errors.read_line(&mut line).unwrap() > 0,
            "the trial has ended"
        );
    }
    load.stop().unwrap();
    let mut report = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut report)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(report.contains("no request finished for 5 s"), "{report}");
    assert_eq!(settings(&disk), before);
}
