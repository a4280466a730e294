//! [`Snapshot`]: the inventory of the host at one time, and the maps that attribute an event to a
//! VM.

use std::collections::HashMap;
use std::sync::Arc;

use weir_model::inventory::{BlockDevice, Disk, Vm};
use weir_model::{Nanos, Symbol};

use super::found::TapdiskKey;
use super::names::{BY_PID, NameConflict};
use crate::qmp::QmpAddress;

/// The inventory at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Incremented with every change.
    pub generation: u64,
    /// Time of the scan.
    pub taken: Nanos,
    /// The VMs.
    pub vms: Vec<Vm>,
    /// Their disks.
    pub disks: Vec<LaidDisk>,
    /// The block devices.
    pub devices: Vec<BlockDevice>,
    /// The VM of each process, as a position in `vms`: the VM's own processes, its vhost-user back
    /// ends, its kernel threads.
    pub pids: HashMap<u32, u32>,
    /// Processes that work for several VMs, with the positions of those in `vms`.
    pub servers: HashMap<u32, Vec<u32>>,
    /// The VM of each cgroup, by the path in [`Vm::cgroup`]; nested cgroups belong to it as well.
    /// Only cgroups of exactly one VM.
    pub cgroups: HashMap<Symbol, u32>,
    /// The VM of each network device that is a tap of its process.
    pub taps: HashMap<Symbol, u32>,
    /// The QMP address of a VM, by its position in `vms`.
    pub monitors: HashMap<u32, QmpAddress>,
    /// Names that processes of several users claim.
    pub conflicts: Vec<NameConflict>,
    /// What could not be read, as text.
    pub remarks: Vec<String>,
}

impl Snapshot {
    /// The VM with name `name`, as a position in `vms`; `None` if there is none. `pid:4711` is the
    /// VM of that process, regardless of VM names.
    ///
    /// # Errors
    /// If VMs of several users claim the name with equal standing.
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

/// A virtual disk and the location of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaidDisk {
    /// The disk.
    pub disk: Disk,
    /// Its VM, as a position in [`Snapshot::vms`].
    pub vm: u32,
    /// The location of its data.
    pub layout: Arc<DiskLayout>,
    /// Its tapdisk, if one serves it.
    pub tapdisk: Option<TapdiskKey>,
    /// The control socket of its tapdisk, if its path is known.
    pub control: Option<Symbol>,
}

/// The location of a virtual disk's data on the host's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskLayout {
    /// The pieces, sorted by device and sector, without overlap, on every visible device of a
    /// stack: a file on a loop device has pieces on that device and on those below.
    pub pieces: Vec<Piece>,
    /// The whole devices, of every visible level of a stack, on which the active image, or the one
    /// below it, to which QEMU may commit it, may get further sectors, as it is in a file.
    pub grows_on: Vec<u32>,
}

/// Contiguous sectors of a virtual disk on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// The whole device, in the kernel's encoding: `major << 20 | minor`.
    pub device: u32,
    /// The first sector, relative to the whole device.
    pub sector: u64,
    /// The number of sectors.
    pub sectors: u64,
    /// The first sector in the VM's view; `None` if unknown, as in a qcow2 image.
    pub vsector: Option<u64>,
    /// Whether the file system reports that other files may share these sectors (reflinks).
    pub shared: bool,
}
