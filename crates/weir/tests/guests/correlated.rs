//! `weir correlate` over guests: two that serve the same requests of others are a pair, and a third
//! one is in none.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use weir_testing::{DiskLoad, Guest, GuestDisk, LoopDisk, is_full};

use crate::kit;

/// The guests: the first two have a common cause of their load.
const NAMES: [&str; 3] = ["front", "replica", "batch"];

/// Windows of 24 s; more of them on a busy host.
const STEPS_MAX: usize = 400;

/// A guest that reads from its disk, at a rate, until it ends.
fn start(kit: &weir_testing::Kit, test: &str, at: usize) -> (Guest, LoopDisk) {
    let disk = LoopDisk::new(32).unwrap();
    let args = GuestDisk::new("data", disk.path()).args();
    let mut guest = Guest::boot(kit, test, NAMES[at], &args).unwrap();
    let load = DiskLoad {
        read: 100,
        write: 0,
        rate: 60,
        count: 1_000_000,
        span: 16 << 20,
        seed: at as u64,
        ..DiskLoad::on("/dev/vda")
    };
    let command = format!("load {load} > /tmp/load 2>&1 & echo $! > /tmp/pid");
    guest.run(&command).unwrap();
    (guest, disk)
}

/// Stops and continues the loads of these guests together, at random, until it is done.
fn drive(guests: &mut [(Guest, LoopDisk)], seed: u64, is_done: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !is_done.load(Ordering::Relaxed) {
        let signal = if random.bool() { "CONT" } else { "STOP" };
        for (guest, _) in guests.iter_mut() {
            guest
                .run(&format!("kill -{signal} $(cat /tmp/pid)"))
                .unwrap();
        }
        std::thread::sleep(Duration::from_millis(1_500));
    }
}

#[test]
fn guests_with_a_common_cause_are_the_only_pair() {
    const TEST: &str = "guests_with_a_common_cause_are_the_only_pair";
    if !is_full() {
        return;
    }
    let Some((kit, _turn)) = kit(TEST) else {
        return;
    };
    let mut guests: Vec<(Guest, LoopDisk)> = (0..3).map(|at| start(&kit, TEST, at)).collect();
    let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
    weir.args(["correlate", "--json", "--step", "400ms", "--window", "24s"])
        .args(["--lag", "800ms"]);
    for (_, disk) in &guests {
        weir.args(["--device", disk.path()]);
    }
    let is_done = AtomicBool::new(false);
    let (together, alone) = guests.split_at_mut(2);
    let summary = std::thread::scope(|scope| {
        scope.spawn(|| drive(together, 4, &is_done));
        scope.spawn(|| drive(alone, 5, &is_done));
        let mut child = weir.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.by_ref().take(STEPS_MAX) {
            let window: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if window["window"]["pairs"]
                .as_array()
                .is_some_and(|pairs| !pairs.is_empty())
            {
                break;
            }
        }
        let pid = child.id().to_string();
        let kill = Command::new("kill").args(["-INT", &pid]).status();
        assert!(kill.unwrap().success());
        let last = lines.map(Result::unwrap).last();
        is_done.store(true, Ordering::Relaxed);
        child.wait().unwrap();
        last.unwrap_or_default()
    });
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let pairs = summary["summary"]["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 1, "{summary}");
    let pair = &pairs[0]["strongest"];
    let mut found = [&pair["leader"], &pair["follower"]].map(|d| d["vm"].as_str().unwrap());
    found.sort_unstable();
    assert_eq!(found, ["front", "replica"], "{pair}");
    assert!(pair["coefficient"].as_f64().unwrap() > 0.8, "{pair}");
    assert_eq!(pair["leader"]["vdisk"], "/dev/vda", "{pair}");
}
