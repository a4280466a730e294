//! `weir tune` with planted differences: two VMs whose loads depend on a setting of the queue.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testing::{LoopDisk, is_root};

use crate::live::{loop_disk, watchable};
use crate::support::{Scratch, run, skipped};

/// Every 20 ms some direct reads of 4 KiB, whose number depends on a setting: with `rq_affinity` 1
/// and 2. A busy host delays both VMs alike.
const LOAD: &str = "
import mmap, os, sys, time
disk, setting, *counts = sys.argv[1:]
counts = dict(zip('12', map(int, counts)))
file = os.open(disk, os.O_RDONLY | os.O_DIRECT)
buffer, at = mmap.mmap(-1, 4096), 0
while True:
    with open(setting) as text:
        count = counts[text.read().strip()]
    for _ in range(count):
        os.preadv(file, [buffer], at % 4096 * 8192)
        at += 1013
    time.sleep(0.02)
";

/// A VM that reads from a disk. It ends when it is dropped.
struct ReadingVm(Child);

impl ReadingVm {
    /// With these numbers at values 1 and 2 of the setting.
    fn start(disk: &LoopDisk, counts: [&str; 2]) -> Option<ReadingVm> {
        let setting = disk.sysfs().join("queue/rq_affinity");
        let mut command = Command::new("python3");
        command
            .args(["-c", LOAD, disk.path()])
            .arg(setting)
            .args(counts);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().ok().map(ReadingVm)
    }

    /// The bytes that it has read from disks, in blocks of 4 KiB (proc_pid_io(5)).
    fn reads(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/io", self.0.id())).unwrap_or_default();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("read_bytes: "));
        line.map_or(0, |bytes| bytes.parse::<u64>().unwrap() / 4096)
    }

    fn declared(&self, name: &str) -> String {
        format!("{name}=pid:{}", self.0.id())
    }
}

impl Drop for ReadingVm {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A disk with two VMs, each with its numbers at values 1 and 2 of the setting.
fn two_vms(test: &str, [db, mail]: [[&str; 2]; 2]) -> Option<(LoopDisk, ReadingVm, ReadingVm)> {
    if !is_root() || !watchable(test) {
        skipped(test, "needs root, and the tap");
        return None;
    }
    let disk = loop_disk(test)?;
    disk.set("rq_affinity", "1").unwrap();
    let Some(db) = ReadingVm::start(&disk, db) else {
        skipped(test, "needs python3");
        return None;
    };
    let mail = ReadingVm::start(&disk, mail)?;
    // Python starts slowly on a busy machine.
    let until = Instant::now() + Duration::from_secs(30);
    while [&db, &mail].iter().any(|vm| vm.reads() < 50) {
        assert!(Instant::now() < until, "the loads do not read");
        std::thread::sleep(Duration::from_millis(50));
    }
    Some((disk, db, mail))
}

/// The report of a trial of `rq_affinity`.
fn trial(disk: &LoopDisk, vms: [&ReadingVm; 2], candidate: &str, more: &[&str]) -> Value {
    let state = Scratch::new();
    let before = fs::read_to_string(disk.sysfs().join("queue/rq_affinity")).unwrap();
    let [db, mail] = [vms[0].declared("db"), vms[1].declared("mail")];
    let state = state.file("state");
    let args = [
        "tune",
        "-i",
        disk.path(),
        "--try",
        "--candidates",
        candidate,
        "--vm",
        &db,
        "--vm",
        &mail,
        "--block",
        "1s",
        "--settle",
        "200ms",
        "--observe",
        "2s",
        "--rounds",
        "6",
        "--seed",
        "1",
        "--abort-factor",
        "1000000",
        "--state",
        &state,
        "--json",
    ];
    let output = run(&[&args[..], more].concat());
    assert_eq!(output.code, 0, "{}", output.err);
    let after = fs::read_to_string(disk.sysfs().join("queue/rq_affinity")).unwrap();
    assert_eq!(after, before);
    serde_json::from_str(&output.out).unwrap()
}

#[test]
fn what_another_vm_pays_is_shown_and_a_condition_prevents_the_advice() {
    let test = "what_another_vm_pays_is_shown_and_a_condition_prevents_the_advice";
    let Some((disk, db, mail)) = two_vms(test, [["4", "40"], ["40", "4"]]) else {
        return;
    };
    let more = ["-w", "db", "--for", "iops", "--not-worse", "mail:iops=10%"];
    let report = trial(&disk, [&db, &mail], "rq_affinity=2", &more);
    let result = &report["trial"]["result"];
    let found = &result["decision"]["comparisons"][0];
    assert_eq!(found["verdict"], "better", "{report}");
    assert!(found["change_low"].as_f64().unwrap() > 0.3, "{report}");
    // The condition does not hold, so it is not advised.
    assert_eq!(report["trial"]["advice"], Value::Null, "{report}");
    assert_eq!(result["conditions"][0][0][0], "violated", "{report}");
    let price = &result["prices"][0][0];
    assert_eq!(price["vm"], "mail", "{report}");
    assert!(price["iops"]["high"].as_f64().unwrap() < -0.2, "{report}");
}

#[test]
fn fairer_settings_are_advised() {
    let Some((disk, db, mail)) = two_vms("fairer_settings_are_advised", [["9", "36"], ["9", "3"]])
    else {
        return;
    };
    disk.set("rq_affinity", "2").unwrap();
    let more = ["--for", "fairness"];
    let report = trial(&disk, [&db, &mail], "rq_affinity=1", &more);
    assert_eq!(report["trial"]["advice"], "rq_affinity=1", "{report}");
    // Of equal rates the index is 1; of 36 and 3 it is 0.583, which is 72 % more.
    let found = &report["trial"]["result"]["decision"]["comparisons"][0];
    let [low, high] = ["change_low", "change_high"].map(|name| found[name].as_f64().unwrap());
    assert!(low > 0.2 && high < 1.5, "{report}");
}
