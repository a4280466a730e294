//! Two VMs on one disk: interference is found, the two VMs are named, with evidence, and no VM is
//! named without evidence (Ahmad 2007, section 5.3 and figure 6).
//!
//! The disk completes a known number of requests per second, so that the effect on neighbours is
//! the same on every host.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testing::workload::{RecordProcess, fio, undisturbed};
use weir_testing::{DiskLoad, Guest, GuestDisk, Kit, MemoryFolder, SlowDisk};

use crate::report::characterise;
use crate::{skip, turn, weir};

/// The number of requests that a disk completes per second.
const IOPS: u32 = 1_000;

/// The size of each part of a disk.
const PART_MIB: u64 = 24;

/// The pause of a neighbour between its bursts: long enough to measure the disk without it.
const QUIET: Duration = Duration::from_millis(700);

/// The longest duration of a flood on an undisturbed host. The disk takes 4.4 s for its requests,
/// and three pauses take 2.1 s.
const FLOOD_MAX: Duration = Duration::from_secs(13);

/// The longest duration of a scan with a visitor on an undisturbed host. The disk takes 4.1 s.
const SCAN_MAX: Duration = Duration::from_secs(8);

/// A disk of two parts, each of which is used by another VM.
fn shared() -> anyhow::Result<(SlowDisk, [String; 2])> {
    let disk = SlowDisk::new(2 * PART_MIB + 2, IOPS)?;
    let part = |number: u32| {
        let start = 1 + u64::from(number - 1) * PART_MIB;
        disk.partition(number, start << 11, PART_MIB << 11)
    };
    let parts = [part(1)?, part(2)?];
    Ok((disk, parts))
}

/// The output of `weir characterise` for these disks during `work`. If the work took longer than
/// `longest`, the disk waited for the processors; the measurement is then invalid, and the reason
/// is returned.
fn seen(disks: &[&str], longest: Duration, work: impl FnOnce()) -> Result<Value, String> {
    let folder = MemoryFolder::new(64).unwrap();
    let out = folder.path().join("recording.parquet");
    let options: Vec<&str> = disks.iter().flat_map(|d| ["--device", *d]).collect();
    let recorder = RecordProcess::start(weir(), &options, &out).unwrap();
    let begin = Instant::now();
    work();
    let took = begin.elapsed();
    recorder.stop().unwrap();
    match took > longest {
        true => Err(format!("the load took {took:.1?}, more than {longest:?}")),
        false => Ok(characterise(&out)),
    }
}

/// The value with this name in the evidence.
fn evidence(finding: &Value, name: &str) -> f64 {
    let all = finding["evidence"].as_array().unwrap();
    let one = all.iter().find(|e| e["name"] == name);
    one.and_then(|e| e["value"].as_f64())
        .unwrap_or_else(|| panic!("no {name}: {finding}"))
}

/// `web` reads sequentially, one request at a time; `mail` reads at random, 16 at a time, in two
/// bursts.
fn disturbed(web: &mut Guest, mail: &mut Guest, disk: &str) {
    let scan = [DiskLoad {
        bytes: 8192,
        count: 2000,
        span: PART_MIB << 20,
        sequential: true,
        ..DiskLoad::on(disk)
    }];
    let flood = [DiskLoad {
        bytes: 8192,
        count: 1200,
        span: PART_MIB << 20,
        depth: 16,
        ..DiskLoad::on("/dev/vda")
    }];
    web.begin_load(&scan).unwrap();
    for _ in 0..2 {
        thread::sleep(QUIET);
        mail.load(&flood).unwrap();
    }
    thread::sleep(QUIET);
    web.finish_load(&scan).unwrap();
}

#[test]
fn a_guest_that_floods_a_shared_disk_is_named_and_one_on_another_disk_is_not() {
    let test = "a_guest_that_floods_a_shared_disk_is_named_and_one_on_another_disk_is_not";
    let Some(_turn) = turn(test) else { return };
    let made = Kit::find().and_then(|kit| Ok((kit, shared()?, SlowDisk::new(PART_MIB, IOPS)?)));
    let (kit, (common, parts), own) = match made {
        Ok(made) => made,
        Err(why) => return skip(test, why).unwrap_or_default(),
    };
    let disks = [
        GuestDisk::new("d0", &parts[0]).args(),
        GuestDisk::new("d1", own.path()).args(),
    ];
    let mut web = Guest::start(&kit, "web", &disks.concat()).unwrap();
    let mut mail = Guest::start(&kit, "mail", &GuestDisk::new("d0", &parts[1]).args()).unwrap();
    web.ready().unwrap();
    mail.ready().unwrap();

    // Both on one disk.
    let report = undisturbed(test, || {
        seen(&[common.path()], FLOOD_MAX, || {
            disturbed(&mut web, &mut mail, "/dev/vda");
        })
    });
    let found = report["interference"].as_array().unwrap();
    let [finding] = &found[..] else {
        panic!("one disturbs the other: {found:?} {:?}", report["missing"]);
    };
    let whose = |who: &str| [&finding[who]["vm"], &finding[who]["vdisk"]].map(Value::as_str);
    assert_eq!(whose("victim"), [Some("web"), Some("/dev/vda")]);
    assert_eq!(whose("disturber"), [Some("mail"), Some("/dev/vda")]);
    // A request waits for up to 16 others: its latency increases, and its rate decreases, by this
    // factor.
    let ratio = |name: &str| finding[name].as_f64().unwrap();
    assert!((3.0..60.0).contains(&ratio("latency_ratio")), "{finding}");
    assert!(
        (0.01..0.5).contains(&ratio("throughput_ratio")),
        "{finding}"
    );
    let alone = evidence(finding, "rate_without_per_s");
    assert!(alone <= 1.2 * f64::from(IOPS), "{finding}");
    assert!(evidence(finding, "transitions") >= 3.0, "{finding}");
    assert_ne!(finding["confidence"], "low", "{finding}");

    // The same workloads on two disks.
    let report = undisturbed(test, || {
        seen(&[common.path(), own.path()], FLOOD_MAX, || {
            disturbed(&mut web, &mut mail, "/dev/vdb");
        })
    });
    assert_eq!(report["interference"], Value::Array(Vec::new()));
    let profiles = report["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 2, "{profiles:?}");
}

#[test]
fn a_neighbour_that_does_little_is_not_blamed() {
    let test = "a_neighbour_that_does_little_is_not_blamed";
    let Some(_turn) = turn(test) else { return };
    let (disk, [scanned, visited]) = match shared() {
        Ok(made) => made,
        Err(why) => return skip(test, why).unwrap_or_default(),
    };
    let work = || {
        thread::scope(|scope| {
            let (scanned, visited) = (&scanned, &visited);
            let scan = "--rw=read --bs=8k --iodepth=1 --size=24m --io_size=32m";
            scope.spawn(move || fio(&format!("--filename={scanned}"), scan).unwrap());
            // One request in fifty is the visitor's: most requests of the scan are not delayed by
            // it.
            let visit = "--rw=randread --bs=8k --iodepth=1 --rate_iops=20 --number_ios=16";
            for _ in 0..2 {
                thread::sleep(QUIET);
                fio(&format!("--filename={visited}"), visit).unwrap();
            }
        });
    };
    let report = undisturbed(test, || seen(&[disk.path()], SCAN_MAX, work));
    // A finding that the scan disturbs the visitor would be correct.
    let found = report["interference"].as_array().unwrap();
    let blamed = |finding: &&Value| finding["disturber"]["pdisk"] == visited.as_str();
    assert_eq!(found.iter().find(blamed), None);
    assert_eq!(report["profiles"].as_array().unwrap().len(), 2);
}
