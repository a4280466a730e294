//! [`Snapshot`]: what the host has at one time, and what an event needs to be told whose it is.

use std::collections::HashMap;
use std::sync::Arc;

use weir_model::inventory::{BlockDevice, Disk, Vm};
use weir_model::{Nanos, Symbol};

use super::names::{BY_PID, NameConflict};
use crate::qmp::Address;

/// The inventory at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Grows with every change.
    pub generation: u64,
    /// When the host was looked at.
    pub taken: Nanos,
    /// The VMs.
    pub vms: Vec<Vm>,
    /// Their disks.
    pub disks: Vec<LaidDisk>,
    /// The block devices.
    pub devices: Vec<BlockDevice>,
    /// Which VM a process works for, as a position in `vms`: the VM's own processes, its vhost-user
    /// back ends, its kernel threads.
    pub pids: HashMap<u32, u32>,
    /// Processes that work for several VMs, and for which, as positions in `vms`.
    pub servers: HashMap<u32, Vec<u32>>,
    /// Which VM a cgroup belongs to, by the path that [`Vm::cgroup`] has; cgroups below belong to it
    /// as well. Only cgroups that hold nothing but one VM.
    pub cgroups: HashMap<Symbol, u32>,
    /// Where a VM's QMP is to be had, by its position in `vms`.
    pub monitors: HashMap<u32, Address>,
    /// Names that processes of several users claim.
    pub conflicts: Vec<NameConflict>,
    /// What could not be read, in words.
    pub remarks: Vec<String>,
}

impl Snapshot {
    /// The VM called `name`, as a position in `vms`; `None` if there is none. `pid:4711` is the VM
    /// of that process, whatever VMs are called.
    ///
    /// # Errors
    /// When VMs of several users claim the name and none has a better claim.
    pub fn vm(&self, name: &str) -> Result<Option<usize>, &NameConflict> {
        if let Some(pid) = name.strip_prefix(BY_PID).and_then(|n| n.parse().ok()) {
            return Ok(self.vms.iter().position(|vm| vm.pid == Some(pid)));
        }
        let ambiguous = |c: &&NameConflict| c.ambiguous && c.name.as_str() == name;
        if let Some(conflict) = self.conflicts.iter().find(ambiguous) {
            return Err(conflict);
        }
        Ok(self.vms.iter().position(|vm| vm.name.as_str() == name))
    }
}

/// A virtual disk and where its data lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaidDisk {
    /// The disk.
    pub disk: Disk,
    /// Its VM, as a position in [`Snapshot::vms`].
    pub vm: u32,
    /// Where its data lie.
    pub layout: Arc<Layout>,
}

/// Where the data of a virtual disk lie on the host's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The pieces, in order of device and sector, without overlap. On every device of a stack that
    /// can be seen: a file on a loop device lies on that device and, once more, on those below.
    pub pieces: Vec<Piece>,
}

/// Sectors of a virtual disk that lie together on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// The whole device, as the kernel keeps its number: `major << 20 | minor`.
    pub device: u32,
    /// The first sector, counted from the beginning of the whole device.
    pub sector: u64,
    /// How many.
    pub sectors: u64,
    /// The first sector as the VM sees it; `None` where that is not known, as in a qcow2 image.
    pub vsector: Option<u64>,
    /// Whether the file system says that other files may lie there as well: copies that share their
    /// blocks.
    pub shared: bool,
}
