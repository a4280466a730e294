//! `weir characterise` by file: against a recomputation from the rows, and on loads of known
//! patterns.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value as Json;

use crate::live::watched_disk;
use crate::path::has_levels;
use crate::support::{Scratch, run, weir};

/// Writes one file from its start to its end, and reads another at random positions.
fn load(folder: &Path) {
    let fio = |arguments: &[&str], file: &str| {
        let done = Command::new("fio")
            .args(["--name=load", "--direct=1", "--ioengine=psync"])
            .arg(format!("--filename={}", folder.join(file).display()))
            .args(arguments)
            .stdout(Stdio::null())
            .status();
        assert!(done.unwrap().success());
    };
    fio(&["--rw=write", "--bs=64k", "--size=4m"], "log");
    let reads = [
        "--rw=randread",
        "--bs=4k",
        "--size=8m",
        "--io_size=1m",
        "--randseed=7",
    ];
    fio(&reads, "table");
}

/// The run of `weir` with these arguments, for some seconds during which [`load`] is executed.
fn during_load(args: &[&str], folder: &Path) -> String {
    let mut command = weir(&[args, &["--for", "8s"]].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(2_500));
    load(folder);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The table for 8 MiB is laid out before it is observed.
fn laid_out(folder: &Path) {
    fs::write(folder.join("table"), vec![7; 8 << 20]).unwrap();
    rustix::fs::sync();
}

fn file<'a>(report: &'a Json, path: &Path) -> &'a Json {
    let disks = report["files"]["disks"].as_array().unwrap().iter();
    let mut files = disks.flat_map(|disk| disk["files"].as_array().unwrap());
    let found = files.find(|file| file["path"] == path.to_str().unwrap());
    found.unwrap_or_else(|| panic!("{}: {}", path.display(), report["files"]))
}

#[test]
fn known_patterns_of_files_are_recognised() {
    let test = "known_patterns_of_files_are_recognised";
    if !has_levels(test) {
        return;
    }
    let Some(disk) = watched_disk(test) else {
        return;
    };
    let folder = disk.file_system().unwrap();
    laid_out(&folder);
    let scratch = Scratch::new();
    let page = scratch.file("page.html");
    let args = [
        "characterise",
        "--by-file",
        "-i",
        disk.path(),
        "--json",
        "--html",
        &page,
    ];
    let report: Json = serde_json::from_str(&during_load(&args, &folder)).unwrap();
    let log = file(&report, &folder.join("log"));
    assert_eq!(
        (&log["pattern"], &log["direct"]),
        (&"sequential".into(), &64.into()),
        "{log}"
    );
    assert_eq!(
        (&log["writes"]["requests"], &log["writes"]["sequential"]),
        (&64.into(), &63.into())
    );
    assert_eq!(
        (&log["writes"]["bytes"], &log["reads"]["requests"]),
        (&(4 << 20).into(), &0.into())
    );
    assert_eq!(
        (&log["first_byte"], &log["end_byte"]),
        (&0.into(), &(4 << 20).into())
    );
    assert_eq!(log["lengths"], serde_json::json!([[65_536, 64]]));
    let points = log["access"]["points"].as_array().unwrap();
    let offsets = points
        .iter()
        .map(|point| point["first_byte"].as_i64().unwrap() / 65_536);
    assert_eq!(offsets.collect::<Vec<_>>(), (0..64).collect::<Vec<_>>());
    let table = file(&report, &folder.join("table"));
    assert_eq!(
        (&table["pattern"], &table["read_bytes_share"]),
        (&"random".into(), &1.0.into()),
        "{table}"
    );
    assert_eq!(
        (&table["reads"]["requests"], &table["reads"]["bytes"]),
        (&256.into(), &(1 << 20).into())
    );
    assert_eq!(table["mean_bytes"], 4_096.0);
    // The requests of the disk are characterised as before.
    assert!(
        report["profiles"][0]["requests"].as_u64().unwrap() >= 64 + 256,
        "{report}"
    );
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("offset in the file") && page.contains("/table"));
}

/// The measures of a file, recomputed from its rows.
#[derive(Debug, Default, PartialEq)]
struct Recomputed {
    requests: u64,
    direct: u64,
    flushes: u64,
    /// Requests, bytes, sequential requests, of reads and writes.
    accesses: [(u64, i64, u64); 2],
    ends: [Option<i64>; 2],
}

fn recomputed(rows: &[Json]) -> BTreeMap<(String, i64), Recomputed> {
    let mut rows: Vec<&Json> = rows.iter().collect();
    rows.sort_by_key(|row| row["begin"].as_str().unwrap().to_owned());
    let mut files: BTreeMap<(String, i64), Recomputed> = BTreeMap::new();
    for row in rows {
        let Some(inode) = row["inode"].as_i64() else {
            continue;
        };
        let name = row["pdisk"].as_str().unwrap_or_default().to_owned();
        let file = files.entry((name, inode)).or_default();
        file.requests += 1;
        file.direct += u64::from(row["flags"].as_str().unwrap_or_default().contains('D'));
        let kind = match row["op"].as_str().unwrap() {
            "r" => 0,
            "w" => 1,
            other => {
                file.flushes += u64::from(other == "f");
                continue;
            }
        };
        let (offset, bytes) = (
            row["offset"].as_i64().unwrap(),
            row["bytes"].as_i64().unwrap(),
        );
        let (requests, sum, sequential) = &mut file.accesses[kind];
        *requests += 1;
        *sum += bytes;
        *sequential += u64::from(file.ends[kind] == Some(offset));
        file.ends[kind] = Some(offset + bytes);
    }
    files
}

#[test]
fn the_files_of_a_recording_are_those_recomputed_from_its_rows() {
    let test = "the_files_of_a_recording_are_those_recomputed_from_its_rows";
    if !has_levels(test) {
        return;
    }
    let Some(disk) = watched_disk(test) else {
        return;
    };
    let folder = disk.file_system().unwrap();
    laid_out(&folder);
    let scratch = Scratch::new();
    let recording = scratch.file("files.parquet");
    during_load(&["record", "--stream", "FileIO", "-o", &recording], &folder);
    // Truncations and holes move no data.
    let query = "select begin, op, pdisk, inode, offset, bytes, flags from FileIO
                 where op not in ('t', 'p')";
    let rows = run(&["query", "--from", &recording, "--format", "json", query]).fine();
    let rows: Vec<Json> = rows
        .lines()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    let expected = recomputed(&rows);
    let report = run(&["characterise", "--json", "--from", &recording]).fine();
    let report: Json = serde_json::from_str(&report).unwrap();
    assert_eq!(report["files"]["requests"], rows.len() as u64);
    let mut compared = 0;
    for disk in report["files"]["disks"].as_array().unwrap() {
        for file in disk["files"].as_array().unwrap() {
            let pdisk = disk["pdisk"].as_str().unwrap_or_default().to_owned();
            let own = &expected[&(pdisk, file["inode"].as_i64().unwrap())];
            let number = |value: &Json| value.as_u64().unwrap();
            let counts = |kind: &Json| {
                let bytes = kind["bytes"].as_i64().unwrap();
                (
                    number(&kind["requests"]),
                    bytes,
                    number(&kind["sequential"]),
                )
            };
            let reported = Recomputed {
                requests: number(&file["requests"]),
                direct: number(&file["direct"]),
                flushes: number(&file["flushes"]),
                accesses: [counts(&file["reads"]), counts(&file["writes"])],
                ends: own.ends,
            };
            assert_eq!(reported, *own, "{file}");
            compared += 1;
        }
    }
    assert!(compared >= 2 && compared <= expected.len(), "{compared}");
    assert!(file(&report, &folder.join("log"))["writes"]["requests"] == 64);

    let table = run(&["characterise", "--from", &recording, "-i", disk.path()]).fine();
    let line = |name: &str| {
        let path = folder.join(name);
        let lines = table.lines().map(str::trim_start);
        let mut own = lines.filter(|line| line.starts_with(path.to_str().unwrap()));
        own.next().map(str::to_owned).expect("a line of the file")
    };
    assert!(
        table.contains(&format!("files of {}", disk.path())),
        "{table}"
    );
    assert!(
        line("log").contains("sequential") && line("table").contains("random"),
        "{table}"
    );
    let only = format!("{}x", disk.path());
    let none = run(&["characterise", "--from", &recording, "-i", &only]).fine();
    assert_eq!(none, "no requests of files\n\n");
}

#[test]
fn a_recording_without_files_has_none_to_report() {
    let sample = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../samples/fio-loop.parquet"
    );
    let output = run(&["characterise", "--by-file", "--from", sample]);
    assert_eq!(
        (output.code, output.out.as_str()),
        (2, ""),
        "{}",
        output.err
    );
    assert!(
        output.err.contains("weir record --stream FileIO"),
        "{}",
        output.err
    );
    let report = run(&["characterise", "--json", "--from", sample]).fine();
    let report: Json = serde_json::from_str(&report).unwrap();
    assert!(report.get("files").is_none());
}
