//! [`ThrottledDisk`]: a loop device of a known rate for some processes, which keeps its data.
//!
//! A [`SlowDisk`](crate::SlowDisk) is for every process, but the storage daemon of QEMU 7.2 mixes
//! up the data of concurrent writes through FUSE, so no file system survives on it. Here the loop
//! device is on another one, whose requests cgroup v1 limits. The kernel counts a request of a loop
//! device for the group of the process that submitted it, at the device below as well.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::LoopDisk;

/// A loop device that completes this number of reads, and of writes, per second and no more, for
/// the processes of its group.
#[derive(Debug)]
pub struct ThrottledDisk {
    // Dropped in this order.
    disk: LoopDisk,
    _below: LoopDisk,
    group: PathBuf,
}

/// The groups of the controller.
const GROUPS: &str = "/sys/fs/cgroup/blkio";

impl ThrottledDisk {
    /// A device of `mebibytes`, or why it cannot be created: it needs root and the controller blkio
    /// of cgroup v1.
    pub fn new(mebibytes: u64, iops: u32) -> Result<ThrottledDisk> {
        let below = LoopDisk::new(mebibytes)?;
        let disk = LoopDisk::on(Path::new(below.path()), &["--direct-io=on"])?;
        let name = format!("weir-{}-{}", std::process::id(), below.name());
        let group = Path::new(GROUPS).join(name);
        let device = fs::read_to_string(below.sysfs().join("dev"))?;
        fs::create_dir(&group).with_context(|| group.display().to_string())?;
        let throttled = ThrottledDisk {
            disk,
            _below: below,
            group,
        };
        for operation in ["read", "write"] {
            let file = format!("blkio.throttle.{operation}_iops_device");
            let limit = format!("{} {iops}", device.trim());
            let path = throttled.group.join(file);
            fs::write(&path, limit).with_context(|| path.display().to_string())?;
        }
        Ok(throttled)
    }

    /// Limits the requests of this process.
    ///
    /// # Errors
    /// When it has ended.
    pub fn limit(&self, pid: u32) -> Result<()> {
        let path = self.group.join("cgroup.procs");
        fs::write(&path, pid.to_string()).with_context(|| path.display().to_string())
    }
}

impl Deref for ThrottledDisk {
    type Target = LoopDisk;

    fn deref(&self) -> &LoopDisk {
        &self.disk
    }
}

impl Drop for ThrottledDisk {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.group) {
            eprintln!("cleaning up {}: {error}", self.group.display());
        }
    }
}
