//! [`WriteLimit`]: a cgroup whose processes may send a device a number of writes per second.

use std::fs;
use std::path::PathBuf;

use crate::LoopDisk;

/// The cgroup, removed at the end.
#[derive(Debug)]
pub struct WriteLimit(PathBuf);

impl WriteLimit {
    /// A limit of `iops` direct writes per second to `disk`. `None` if the io controller of cgroups
    /// v1 is not mounted where it usually is.
    pub fn new(disk: &LoopDisk, iops: u32) -> Option<WriteLimit> {
        let device = fs::read_to_string(disk.sysfs().join("dev")).expect("a device number");
        let name = format!("weir-{}-{}", std::process::id(), disk.name());
        let limited = WriteLimit(PathBuf::from("/sys/fs/cgroup/blkio").join(name));
        fs::create_dir(&limited.0).ok()?;
        let limit = format!("{} {iops}", device.trim());
        let file = limited.0.join("blkio.throttle.write_iops_device");
        fs::write(file, limit).ok()?;
        Some(limited)
    }

    /// The file to which a process is written that is to be limited.
    pub fn processes(&self) -> String {
        self.0.join("cgroup.procs").display().to_string()
    }
}

impl Drop for WriteLimit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
