//! Load by fio, and the counters of fio and the kernel.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use weir_testing::LoopDisk;

/// The results of a run of fio.
#[derive(Clone, Debug, Default)]
pub struct Fio {
    /// Reads.
    pub read: Direction,
    /// Writes.
    pub write: Direction,
    /// Discards.
    pub trim: Direction,
    /// Calls of fsync.
    pub syncs: i64,
}

/// The results of one direction.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// Calls.
    pub ios: i64,
    /// Bytes.
    pub bytes: i64,
    /// Mean of submission to completion, ns.
    pub mean_ns: f64,
    /// 50th, 90th and 99th percentile of submission to completion, ns.
    pub quantiles_ns: [f64; 3],
}

/// Runs fio on the disk with these options, separated by spaces.
pub fn fio(disk: &LoopDisk, options: &str) -> Fio {
    let file = format!("--filename={}", disk.path());
    let fixed = "--name=load --output-format=json --norandommap --randrepeat=1 --lat_percentiles=1 \
                 --percentile_list=50:90:99";
    let output = Command::new("fio")
        .args(fixed.split_whitespace())
        .arg(&file)
        .args(options.split_whitespace())
        .output()
        .expect("fio starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "fio {options}: {stdout} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Notes may precede the report.
    let report = stdout.find('{').map_or("", |at| &stdout[at..]);
    let report: Value = serde_json::from_str(report).expect("fio reports in JSON");
    let jobs = report["jobs"].as_array().expect("fio reports its jobs");
    let sum = |name: &str| {
        jobs.iter()
            .map(|j| direction(&j[name]))
            .fold(Direction::default(), |a, b| Direction {
                ios: a.ios + b.ios,
                bytes: a.bytes + b.bytes,
                ..b
            })
    };
    Fio {
        read: sum("read"),
        write: sum("write"),
        trim: sum("trim"),
        syncs: jobs
            .iter()
            .filter_map(|j| j["sync"]["total_ios"].as_i64())
            .sum(),
    }
}

fn direction(report: &Value) -> Direction {
    let times = &report["lat_ns"];
    let quantile = |name: &str| times["percentile"][name].as_f64().unwrap_or_default();
    Direction {
        ios: report["total_ios"].as_i64().unwrap_or_default(),
        bytes: report["io_bytes"].as_i64().unwrap_or_default(),
        mean_ns: times["mean"].as_f64().unwrap_or_default(),
        quantiles_ns: ["50.000000", "90.000000", "99.000000"].map(quantile),
    }
}

/// The kernel's own counts of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Requests and sectors of reads.
    pub read: (i64, i64),
    /// Of writes; a flush without data is a write without sectors.
    pub write: (i64, i64),
    /// Of discards.
    pub discard: (i64, i64),
    /// Flush commands that the kernel issued.
    pub flushes: i64,
}

impl DiskStats {
    /// The current counts.
    pub fn of(disk: &LoopDisk) -> DiskStats {
        DiskStats::read(&disk.sysfs().join("stat"))
    }

    /// The same from a disk's file in sysfs.
    pub fn read(stat: &Path) -> DiskStats {
        let text = fs::read_to_string(stat).expect("the disk has counts");
        let n: Vec<i64> = text.split_whitespace().flat_map(str::parse).collect();
        DiskStats {
            read: (n[0], n[2]),
            write: (n[4], n[6]),
            discard: (n[11], n[13]),
            flushes: n[15],
        }
    }

    /// The increments since `before`.
    pub fn since(self, before: DiskStats) -> DiskStats {
        let minus = |a: (i64, i64), b: (i64, i64)| (a.0 - b.0, a.1 - b.1);
        DiskStats {
            read: minus(self.read, before.read),
            write: minus(self.write, before.write),
            discard: minus(self.discard, before.discard),
            flushes: self.flushes - before.flushes,
        }
    }

    /// Requests of all kinds.
    pub fn requests(self) -> i64 {
        self.read.0 + self.write.0 + self.discard.0
    }
}
