//! An alert with an action on two guests that share a slow disk: it names the one that disturbs the
//! other, halves its rate, the other one recovers, and everything is as before when it has cleared.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testing::{DiskLoad, Guest, GuestDisk, Kit, Scratch, ThrottledDisk, is_full, run};

use crate::kit;

/// The requests per second of the disk, in each direction.
const DISK_IOPS: u32 = 200;

const DISK_MIB: u64 = 64;

/// The guest that disturbs the other one.
const NOISY: &str = "batch";
const QUIET: &str = "mail";

/// The VM with most of the requests of a disk, which is slow. Its limit is half of its rate.
const ALERT: &str = "create alert noisy as
    select own.vm as vm, own.vdisk as vdisk, own.requests as requests,
           1.0 * own.requests / total.requests as share, total.mean as mean
    from (select vm, vdisk, count(*) as requests from IO [range 1 s slide 500 ms]
          where vm is not null group by vm, vdisk) own
         cross join (select count(*) as requests, avg(latency) as mean
                     from IO [range 1 s slide 500 ms] where vm is not null) total
    when share > 0.6 and mean > 20 ms for 1 s until requests < 20 for 2 s
    labels vm, vdisk
    act limit vm, vdisk as disk, requests / 2 as iops for 5 min cooldown 1 min
        witness mean < 20 ms within 30 s;";

/// A guest with a part of the disk.
fn start(kit: &Kit, test: &str, name: &str, disk: &ThrottledDisk, number: u32) -> Guest {
    let sectors = DISK_MIB * 2048 / 2;
    let begin = u64::from(number - 1) * sectors;
    let part = disk.partition(number, begin, sectors).unwrap();
    let guest = Guest::boot(kit, test, name, &GuestDisk::new("data", &part).args()).unwrap();
    disk.limit(guest.pid()).unwrap();
    guest
}

/// A load in a guest; its process is in `/tmp/pid`.
fn load(guest: &mut Guest, depth: u64, rate: u64) {
    let load = DiskLoad {
        read: 100,
        write: 0,
        depth,
        rate,
        count: 1_000_000,
        ..DiskLoad::on("/dev/vda")
    };
    let command = format!("load {load} > /tmp/load 2>&1 & echo $! > /tmp/pid");
    guest.run(&command).unwrap();
}

/// QEMU's limit of requests per second of the disk.
fn limit(guest: &Guest) -> u64 {
    let mut qmp = guest.qmp().unwrap();
    let drives = qmp.call("query-block", json!({})).unwrap();
    let drives = drives.as_array().unwrap().iter();
    let limits = drives.filter_map(|drive| drive["inserted"]["iops"].as_u64());
    limits.max().unwrap()
}

/// A run of weir, which ends with the test.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(args: &[&str]) -> Running {
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        let mut child = weir.args(args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Running { child, lines }
    }

    /// The next step of an action with this name; the transitions of alerts before it.
    fn step(&mut self, event: &str) -> (Value, Vec<Value>) {
        let mut transitions = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "no step {event}: {transitions:?}");
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["action"]["event"] == event {
                return (line["action"].clone(), transitions);
            }
            transitions.push(line);
        }
    }

    fn interrupt(&mut self) {
        run("kill", &["-INT", &self.child.id().to_string()]).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Requests per second and the p99 in ns of a VM in a recording, from one second to another after
/// the first request of the noisy guest.
fn measured(file: &str, vm: &str, from: f64, to: f64) -> (f64, f64) {
    let first = format!("(select min(ts) from IO where vm = '{NOISY}')");
    let query = format!(
        "select count(*) as n, quantile(latency, 0.99) as p99 from IO where vm = '{vm}' \
         and ts > {first} + {} ms and ts <= {first} + {} ms",
        (from * 1e3) as u64,
        (to * 1e3) as u64
    );
    let args = [
        "query", "--from", file, "--final", "--format", "json", &query,
    ];
    let row = run(env!("CARGO_BIN_EXE_weir"), &args).unwrap();
    let row: Value = serde_json::from_str(row.lines().last().unwrap()).unwrap();
    let requests = row["n"].as_f64().unwrap();
    (requests / (to - from), row["p99"].as_f64().unwrap())
}

#[test]
fn the_guest_that_disturbs_is_limited_and_the_other_one_recovers() {
    const TEST: &str = "the_guest_that_disturbs_is_limited_and_the_other_one_recovers";
    if !is_full() {
        return;
    }
    let Some((kit, _turn)) = kit(TEST) else {
        return;
    };
    let disk = match ThrottledDisk::new(DISK_MIB, DISK_IOPS) {
        Ok(disk) => disk,
        Err(why) => {
            weir_testing::skipped(TEST, format_args!("{why:#}"));
            return;
        }
    };
    let mut quiet = start(&kit, TEST, QUIET, &disk, 1);
    let mut noisy = start(&kit, TEST, NOISY, &disk, 2);
    let scratch = Scratch::new();
    let (alerts, recording) = (
        scratch.write("alerts.cql", ALERT),
        scratch.file("r.parquet"),
    );
    let leases = scratch.file("leases");
    load(&mut quiet, 1, 20);
    let mut record = Running::start(&["record", "--device", disk.path(), "-o", &recording]);
    let mut watch = Running::start(&[
        "alert",
        "watch",
        "--json",
        "-f",
        &alerts,
        "--device",
        disk.path(),
        "--act",
        "bat*",
        "--act-state",
        &leases,
        "--act-floor",
        "20",
    ]);
    std::thread::sleep(Duration::from_secs(5));
    let began = Instant::now();
    let since = |at: Instant| at.elapsed().as_secs_f64();
    load(&mut noisy, 16, 0);
    let (applied, _) = watch.step("applied");
    let limited_after = since(began);
    assert_eq!(applied["vm"], NOISY, "{applied}");
    let iops = applied["limit"]["iops"].as_u64().unwrap();
    assert_eq!(limit(&noisy), iops);
    assert_eq!(limit(&quiet), 0);
    let (improved, _) = watch.step("improved");
    assert!(improved["effect"].is_string(), "{improved}");
    std::thread::sleep(Duration::from_secs(8));
    noisy.run("kill $(cat /tmp/pid)").unwrap();
    let ended_after = since(began);
    let (ended, _) = watch.step("ended");
    let outcome = (&ended["cause"], &ended["outcome"]);
    assert_eq!(outcome, (&json!("cleared"), &json!("restored")));
    assert_eq!((limit(&noisy), limit(&quiet)), (0, 0));
    watch.interrupt();
    record.interrupt();

    let before = |vm| measured(&recording, vm, 1.0, limited_after - 0.2);
    let after = |vm| measured(&recording, vm, ended_after - 6.0, ended_after - 1.0);
    let (noisy_before, noisy_after) = (before(NOISY).0, after(NOISY).0);
    let (quiet_before, quiet_after) = (before(QUIET).1, after(QUIET).1);
    println!(
        "applied after {limited_after:.1} s; {NOISY}: {noisy_before:.0} to {noisy_after:.0} \
         requests/s (limit {iops}); {QUIET}: p99 {:.1} to {:.1} ms",
        quiet_before / 1e6,
        quiet_after / 1e6
    );
    assert!(
        noisy_after < 0.7 * noisy_before,
        "{noisy_before} {noisy_after}"
    );
    assert!(
        quiet_after < 0.5 * quiet_before,
        "{quiet_before} {quiet_after}"
    );
}
