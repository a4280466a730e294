//! A loop device over a file in memory, loaded by fio: the fastest disk that every machine has.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::execute;

/// The size of the disk.
const DISK_MIB: u32 = 256;

/// A loop device of ours; it and all that it needs go away when it is dropped.
pub struct Disk {
    /// `/dev/loop3`
    pub device: String,
    folder: PathBuf,
}

/// What fio counted in one run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests finished.
    pub requests: f64,
    /// Requests finished per second.
    pub iops: f64,
}

impl Disk {
    /// Makes the disk, every block of it written.
    pub fn new() -> Result<Disk> {
        let folder = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut disk = Disk {
            device: String::new(),
            folder,
        };
        let size = format!("size={}m", DISK_MIB + 64);
        execute(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "weir-bench"])
                .arg(&disk.folder),
        )?;
        let image = disk.folder.join("disk");
        let of = format!("of={}", image.display());
        let count = format!("count={DISK_MIB}");
        execute(Command::new("dd").args(["if=/dev/zero", &of, "bs=1M", &count, "status=none"]))?;
        let made = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(&image)
            .output()?;
        if !made.status.success() {
            bail!("losetup: {}", String::from_utf8_lossy(&made.stderr).trim());
        }
        disk.device = String::from_utf8(made.stdout)?.trim().to_string();
        Ok(disk)
    }

    /// Reads 4 KiB at random places, 32 at a time, for so many seconds.
    pub fn load(&self, seconds: u32) -> Result<Load> {
        self.load_at(seconds, None)
    }

    /// The same, at no more than so many a second.
    pub fn load_at(&self, seconds: u32, rate_iops: Option<u32>) -> Result<Load> {
        let out = Command::new("fio")
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
            .args(rate_iops.map(|rate| format!("--rate_iops={rate}")))
            .output()
            .context("cannot start fio")?;
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

impl Drop for Disk {
    fn drop(&mut self) {
        if !self.device.is_empty() {
            let _ = Command::new("losetup")
                .args(["--detach", &self.device])
                .status();
        }
        let _ = Command::new("umount").arg(&self.folder).status();
        let _ = fs::remove_dir(&self.folder);
    }
}
