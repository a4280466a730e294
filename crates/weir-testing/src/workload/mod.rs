//! [`Workload`]: workloads of a known kind for a disk, so that weir's results can be compared with
//! them.
//!
//! Tests run weir on each; `cargo xtask pictures` uses the same for the pictures of
//! `docs/workloads.md`. No workload is timed: each ends when its requests are done.

mod database;
mod files;
mod fio;
mod recorder;

use std::path::Path;

use anyhow::Result;

pub use fio::fio;
pub use recorder::RecordProcess;

use crate::{LoopDisk, tried_again};

/// The attempts of [`undisturbed`].
const ATTEMPTS: usize = 3;

/// What `attempt` returns when its precondition held: that other users of the processors did not
/// disturb it. Otherwise it returns the reason, which is reported, and is tried again. Assertions
/// are made on the result, outside of `attempt`.
///
/// # Panics
/// When the precondition held in no attempt.
pub fn undisturbed<T>(test: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let mut reasons = Vec::new();
    for _ in 0..ATTEMPTS {
        match attempt() {
            Ok(found) => return found,
            Err(why) => {
                tried_again(test, &why);
                reasons.push(why);
            }
        }
    }
    panic!("the precondition did not hold: {}", reasons.join("; "))
}

/// A workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name in file names: `sequential-read`.
    pub name: &'static str,
    /// A description in one sentence.
    pub what: &'static str,
    /// weir's name for it.
    pub label: &'static str,
    work: Work,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// fio on the raw device with these options.
    Device(&'static str),
    /// This number of files, read in turn.
    InTurn(usize),
    /// This number of threads, each reading a file of its own at a constant rate.
    Players(usize),
    /// A file is copied through the page cache.
    Copy,
    /// A file is overwritten at random, in place or on a file system that writes elsewhere.
    Overwrite { in_place: bool },
    /// PostgreSQL under pgbench.
    Database,
}

/// A prepared workload. Its resources are released when it is dropped.
type Job = Box<dyn FnOnce() -> Result<()>>;

/// The size of the disk.
const DISK_MIB: u64 = 256;

/// All workloads, in the order of `docs/workloads.md`.
pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "sequential-read",
        what: "reads 64 MiB from the beginning on, 64 KiB at a time, four requests in flight",
        label: "sequential",
        work: Work::Device("--rw=read --bs=64k --iodepth=4 --size=64m"),
    },
    Workload {
        name: "sequential-write",
        what: "writes 64 MiB from the beginning on, 64 KiB at a time, four requests in flight",
        label: "sequential",
        work: Work::Device("--rw=write --bs=64k --iodepth=4 --size=64m"),
    },
    Workload {
        name: "random",
        what: "reads and writes 8 KiB at random places, two reads to a write, eight in flight",
        label: "random",
        work: Work::Device(
            "--rw=randrw --rwmixread=67 --bs=8k --iodepth=8 --size=256m --io_size=24m",
        ),
    },
    Workload {
        name: "reverse-scan",
        what: "reads 32 MiB from the end to the beginning, 8 KiB at a time",
        label: "reverse scan",
        // After each block, fio seeks back by the number after the colon.
        work: Work::Device("--rw=read:-16k --bs=8k --iodepth=1 --size=32m"),
    },
    streams(3),
    Workload {
        name: "players",
        what: "four players read a film each, 16 KiB at a time, at a constant rate",
        label: "4 interleaved sequential streams",
        work: Work::Players(4),
    },
    Workload {
        name: "log-structured",
        what: "writes a log, 16 KiB at a time, while another reads 8 KiB at random places",
        label: "log-structured",
        // The access pattern of ZFS under a database in Ahmad 2007 (section 4.1, figure 3).
        work: Work::Device(
            "--rw=randread --bs=8k --iodepth=4 --size=64m --io_size=16m \
             --name=log --rw=write --bs=16k --iodepth=1 --offset=64m --size=32m --io_size=32m",
        ),
    },
    Workload {
        name: "overwrite-ext4",
        what: "overwrites 8 KiB at random places of a file on ext4, which writes in place",
        label: "random",
        work: Work::Overwrite { in_place: true },
    },
    Workload {
        name: "overwrite-btrfs",
        what: "overwrites 8 KiB at random places of a file on btrfs, which writes elsewhere",
        label: "sequential",
        work: Work::Overwrite { in_place: false },
    },
    Workload {
        name: "file-copy",
        what: "copies a file of 48 MiB on ext4 with cp, through the page cache",
        label: "sequential",
        work: Work::Copy,
    },
    Workload {
        name: "postgresql",
        what: "PostgreSQL on ext4 under pgbench, four clients, with little memory of its own",
        label: "random",
        work: Work::Database,
    },
];

/// weir's names for one to eight streams.
const STREAMS: [&str; 8] = [
    "sequential",
    "2 interleaved sequential streams",
    "3 interleaved sequential streams",
    "4 interleaved sequential streams",
    "5 interleaved sequential streams",
    "6 interleaved sequential streams",
    "7 interleaved sequential streams",
    "8 interleaved sequential streams",
];

/// Up to 8 files, read in turn: interleaved sequential streams.
pub const fn streams(count: usize) -> Workload {
    Workload {
        name: "streams",
        what: "reads files in turn, 16 KiB of each at a time, four requests in flight",
        label: STREAMS[count - 1],
        work: Work::InTurn(count),
    }
}

/// Runs one workload after the other, each on a disk of its own, recorded by the binary `weir` to
/// the file `out`. Returns the disks: `/dev/loop3`.
///
/// # Errors
/// When the host lacks a requirement: root, BPF, or a program, which is named.
pub fn record(workloads: &[Workload], weir: &Path, out: &Path) -> Result<Vec<String>> {
    let disks = workloads.iter().map(|_| LoopDisk::new(DISK_MIB));
    let disks = disks.collect::<Result<Vec<LoopDisk>>>()?;
    let jobs = workloads
        .iter()
        .zip(&disks)
        .map(|(w, disk)| w.prepare(disk));
    let jobs = jobs.collect::<Result<Vec<Job>>>()?;
    let devices: Vec<String> = disks.iter().map(|d| d.path().to_owned()).collect();
    let options: Vec<&str> = devices.iter().flat_map(|d| ["--device", d]).collect();
    let recorder = RecordProcess::start(weir, &options, out)?;
    for job in jobs {
        job()?;
    }
    recorder.stop()?;
    Ok(devices)
}

impl Workload {
    /// The workload of [`WORKLOADS`] with this name.
    pub fn named(name: &str) -> Option<&'static Workload> {
        WORKLOADS.iter().find(|w| w.name == name)
    }

    /// Prepares the workload on the disk.
    fn prepare(&self, disk: &LoopDisk) -> Result<Job> {
        match self.work {
            Work::Device(options) => {
                let device = format!("--filename={}", disk.path());
                Ok(Box::new(move || fio(&device, options)))
            }
            Work::InTurn(count) => files::in_turn(disk, count),
            Work::Players(count) => files::players(disk, count),
            Work::Copy => files::copy(disk),
            Work::Overwrite { in_place } => files::overwrite(disk, in_place),
            Work::Database => database::bench(disk),
        }
    }
}
