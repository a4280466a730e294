//! A loop device over a file in memory, loaded by fio: the fastest disk that is available on every
//! machine.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use weir_testing::{LoopDisk, run};

/// The size of the disk.
const DISK_MIB: u64 = 256;

/// A loop device, removed when it is dropped.
pub struct Disk {
    /// `/dev/loop3`
    pub device: String,
    _made: LoopDisk,
}

/// What fio counted in one run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests completed.
    pub requests: f64,
    /// Requests completed per second.
    pub iops: f64,
}

impl Disk {
    /// Creates the disk, with every block written.
    pub fn new() -> Result<Disk> {
        let disk = LoopDisk::new(DISK_MIB)?;
        let of = format!("of={}", disk.image().display());
        let (count, keep) = (format!("count={DISK_MIB}"), "conv=notrunc");
        run(
            "dd",
            &["if=/dev/zero", &of, "bs=1M", &count, keep, "status=none"],
        )?;
        Ok(Disk {
            device: disk.path().to_owned(),
            _made: disk,
        })
    }

    /// Reads 4 KiB at random offsets, queue depth 32, for `seconds`.
    pub fn load(&self, seconds: u32) -> Result<Load> {
        self.load_at(seconds, None)
    }

    /// The command of such a load.
    pub fn command(&self, seconds: u32, rate_iops: Option<u32>) -> Command {
        let mut command = Command::new("fio");
        command
            .args([
                "--name=load",
                "--rw=randread",
                "--bs=4k",
                "--ioengine=libaio",
                "--iodepth=32",
                "--direct=1",
            ])
            .args([
                "--time_based",
                "--output-format=json",
                "--thread",
                "--allow_file_create=0",
            ])
            .arg(format!("--filename={}", self.device))
            .arg(format!("--runtime={seconds}"))
            .args(rate_iops.map(|rate| format!("--rate_iops={rate}")));
        command
    }

    /// As [`Disk::load`], at no more than `rate_iops` requests per second.
    pub fn load_at(&self, seconds: u32, rate_iops: Option<u32>) -> Result<Load> {
        let out = self.command(seconds, rate_iops).output();
        let out = out.context("cannot start fio")?;
        if !out.status.success() {
            bail!("fio: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        let report: Value = serde_json::from_slice(&out.stdout).context("fio's report")?;
        let read = &report["jobs"][0]["read"];
        let figure = |name: &str| {
            read[name]
                .as_f64()
                .with_context(|| format!("fio's report has no {name}"))
        };
        Ok(Load {
            requests: figure("total_ios")?,
            iops: figure("iops")?,
        })
    }
}
