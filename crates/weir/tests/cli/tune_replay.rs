//! `weir tune --replay`: refused disks, a replay held against the kernel's counters and the data on
//! the disk, and a trial whose load is a recording.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use serde_json::Value;
use weir_testing::{LoopDisk, SlowDisk, is_root};

use crate::live::{loop_disk, watchable};
use crate::support::{Scratch, run, skipped};

const SECTOR: u64 = 512;

/// A disk of 64 MiB for replays; otherwise logs that `test` is skipped.
fn scratch_disk(test: &str) -> Option<LoopDisk> {
    if !is_root() {
        skipped(test, "needs root");
        return None;
    }
    watchable(test).then(|| loop_disk(test)).flatten()
}

/// A trace in the format of MSR Cambridge: requests of 4 KiB, 2 ms apart in groups of `depth`, each
/// of which takes 3 ms. No two are neighbours, so that the kernel merges none.
struct Trace {
    text: String,
    writes: Vec<u64>,
    reads: u64,
}

impl Trace {
    fn new(requests: u64, depth: u64, has_writes: bool) -> Trace {
        let mut trace = Trace {
            text: String::new(),
            writes: Vec::new(),
            reads: 0,
        };
        for number in 0..requests {
            let ticks = 128_166_372_000_000_000 + number / depth * 40_000 + number % depth;
            // A permutation of the even blocks of the first 32 MiB.
            let offset = (number * 1_013 % 4_093) * 8_192;
            let is_write = has_writes && number % 3 == 0;
            match is_write {
                true => trace.writes.push(offset),
                false => trace.reads += 1,
            }
            let kind = if is_write { "Write" } else { "Read" };
            writeln!(trace.text, "{ticks},db,0,{kind},{offset},4096,30000").unwrap();
        }
        trace
    }
}

/// Completed reads and written sectors, of the kernel's counters.
fn counters(disk: &LoopDisk) -> [u64; 2] {
    let text = fs::read_to_string(disk.sysfs().join("stat")).unwrap();
    let fields: Vec<u64> = text
        .split_whitespace()
        .map(|f| f.parse().unwrap())
        .collect();
    [fields[0], fields[6]]
}

#[test]
fn a_replay_issues_the_recorded_requests() {
    let test = "a_replay_issues_the_recorded_requests";
    let Some(disk) = scratch_disk(test) else {
        return;
    };
    let folder = Scratch::new();
    let trace = Trace::new(600, 3, true);
    let file = folder.write("t.csv", &trace.text);
    let [reads, written] = counters(&disk);
    let args = ["tune", "--replay", &*file, "--on", disk.path(), "--json"];
    let report = run(&args).fine();
    let report: Value = serde_json::from_str(&report).unwrap();
    let found = &report["fidelity"];
    assert_eq!(found["planned"], 600, "{report}");
    assert_eq!(
        (&found["matched"], &found["missing"], &found["extra"]),
        (&600.into(), &0.into(), &0.into()),
        "{report}"
    );
    assert_eq!(found["depth_recorded"]["max"], 3, "{report}");
    assert_eq!(
        report["counts"]["failed"],
        Value::Object(serde_json::Map::new())
    );
    // The kernel counted the same; weir reads the first block a few times besides.
    let [reads_after, written_after] = counters(&disk);
    assert!(reads_after - reads >= trace.reads, "{report}");
    assert_eq!(written_after - written, trace.writes.len() as u64 * 8);
    // The data is where the writes were, and nowhere else.
    let image = File::open(disk.image()).unwrap();
    let mut block = [0; SECTOR as usize];
    for offset in (0..32 << 20).step_by(4096) {
        image.read_exact_at(&mut block, offset).unwrap();
        let is_written = block.starts_with(b"weir replay data");
        assert_eq!(is_written, trace.writes.contains(&offset), "{offset}");
    }
    // What an earlier replay has written is free for the next one, which is a closed loop.
    let closed = [&args[..5], &["--loop", "closed", "--speed", "4", "--json"]].concat();
    let report: Value = serde_json::from_str(&run(&closed).fine()).unwrap();
    let found = &report["fidelity"];
    assert_eq!(found["matched"], 600, "{report}");
    // Of a closed loop no more are in flight than were recorded.
    let depth = |name: &str| found[name]["max"].as_u64().unwrap();
    assert!(
        depth("depth_observed") <= depth("depth_recorded"),
        "{report}"
    );
    let text = run(&args[..5]).fine();
    assert!(
        text.contains("All 600 requests arrived with their operation, sector and length."),
        "{text}"
    );
}

#[test]
fn disks_in_use_or_with_data_are_refused_and_stay_as_they_are() {
    let test = "disks_in_use_or_with_data_are_refused_and_stay_as_they_are";
    let Some(disk) = scratch_disk(test) else {
        return;
    };
    let folder = Scratch::new();
    let file = folder.write("t.csv", &Trace::new(30, 1, true).text);
    let refused = |code: i32, more: &[&str], expected: &str| {
        let output = run(&[&["tune", "--replay", &*file][..], more].concat());
        assert_eq!(output.code, code, "{more:?}: {}", output.err);
        assert!(output.err.contains(expected), "{more:?}: {}", output.err);
    };
    refused(2, &["--on", "/dev/null"], "no such disk");
    refused(2, &["--on", disk.path(), "--for", "p99"], "add --try");
    refused(2, &["--on", disk.path(), "--try"], "needs an objective");
    // Data of no known format, at the end.
    let image = File::options().write(true).open(disk.image()).unwrap();
    let end = (64 << 20) - 100;
    image.write_all_at(b"data", end).unwrap();
    refused(1, &["--on", disk.path()], "data of an unknown format");
    image.write_all_at(&[0; 4], end).unwrap();
    // A program that has it open.
    let open = File::open(disk.path()).unwrap();
    let own = format!("process {}", std::process::id());
    refused(1, &["--on", disk.path()], &own);
    drop(open);
    // A mounted file system, and one that is not mounted.
    let mounted = match disk.file_system() {
        Ok(folder) => folder,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    let expected = format!("it is mounted at {}", mounted.display());
    refused(1, &["--on", disk.path()], &expected);
    refused(1, &["--on", disk.path(), "--overwrite"], &expected);
    let unmounted = std::process::Command::new("umount").arg(&mounted).status();
    assert!(unmounted.unwrap().success());
    let expected = "an ext2, ext3 or ext4 file system, which the replay would overwrite";
    refused(1, &["--on", disk.path()], expected);
    // It may be read.
    let args = [
        "tune",
        "--replay",
        &*file,
        "--on",
        disk.path(),
        "--reads-only",
    ];
    let written = counters(&disk)[1];
    let text = run(&args).fine();
    assert!(
        text.contains("10 writes and flushes were left out"),
        "{text}"
    );
    assert_eq!(counters(&disk)[1], written);
    let overwritten = run(&[&args[..5], &["--overwrite"]].concat());
    assert_eq!(overwritten.code, 0, "{}", overwritten.err);
    assert_eq!(counters(&disk)[1], written + 10 * 8);
}

#[test]
fn a_disk_that_is_too_small_is_refused_or_addresses_are_scaled() {
    let test = "a_disk_that_is_too_small_is_refused_or_addresses_are_scaled";
    let Some(disk) = scratch_disk(test) else {
        return;
    };
    let folder = Scratch::new();
    let far = Trace::new(60, 1, false).text.replace("Read,", "Read,4");
    let file = folder.write("t.csv", &far);
    let args = ["tune", "--replay", &*file, "--on", disk.path()];
    let output = run(&args);
    assert_eq!(output.code, 1, "{}", output.err);
    assert!(output.err.contains("or --scale"), "{}", output.err);
    let text = run(&[&args[..], &["--scale"]].concat()).fine();
    assert!(text.contains("Addresses were scaled"), "{text}");
    assert!(text.contains("All 60 requests arrived"), "{text}");
}

/// Settings of the queue that a trial may change.
fn settings(disk: &LoopDisk) -> BTreeMap<String, String> {
    let entries = fs::read_dir(disk.sysfs().join("queue")).unwrap();
    let read = |path: std::path::PathBuf| {
        let text = fs::read_to_string(&path).ok()?;
        Some((path.display().to_string(), text))
    };
    entries
        .filter_map(|entry| read(entry.unwrap().path()))
        .collect()
}

#[test]
fn a_trial_over_a_replay_finds_a_planted_difference() {
    let test = "a_trial_over_a_replay_finds_a_planted_difference";
    if !is_root() || !watchable(test) {
        return skipped(test, "needs root, and the tap");
    }
    let disk = match SlowDisk::new(64, 1_000) {
        Ok(disk) => disk,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    // The disk has a limit of requests: 16 KiB in four of them take four times as long.
    disk.set("max_sectors_kb", "4").unwrap();
    let before = settings(&disk);
    let folder = Scratch::new();
    let text = Trace::new(3_000, 2, false)
        .text
        .replace(",4096,", ",16384,");
    let file = folder.write("t.csv", &text);
    let (page, state) = (folder.file("page.html"), folder.file("state"));
    let args = [
        "tune",
        "--replay",
        &*file,
        "--on",
        disk.path(),
        "--reads-only",
        "--for",
        "throughput",
        "--try",
        "--candidates",
        "max_sectors_kb=16",
        "--block",
        "600ms",
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
        "--html",
        &page,
        "--json",
    ];
    let output = run(&args);
    assert_eq!(output.code, 0, "{}", output.err);
    let report: Value = serde_json::from_str(&output.out).unwrap();
    let trial = &report["trial"];
    assert_eq!(trial["advice"], "max_sectors_kb=16", "{report}");
    assert_eq!(report["replay"]["pacing"], "closed");
    // The kernel splits each request into four for the disk: all sectors arrive.
    let sectors = report["replay"]["fidelity"]["sectors"]["read"]
        .as_array()
        .unwrap();
    assert_eq!(sectors[0], sectors[1], "{report}");
    let change = &trial["result"]["decision"]["comparisons"][0];
    assert!(change["change_low"].as_f64().unwrap() > 0.5, "{report}");
    assert_eq!(settings(&disk), before);
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 2);
    assert!(page.contains("max_sectors_kb=16") && !page.contains("<script"));
}
