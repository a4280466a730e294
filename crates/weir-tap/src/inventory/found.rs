//! The VMs and disks found by one inventory, before the results of all inventories are merged.

use serde::{Deserialize, Serialize};
use weir_model::inventory::VmKind;

use crate::qmp::QmpAddress;

/// A VM as found by one inventory. Unknown fields are `None`, and another inventory may fill them
/// in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundVm {
    /// Its name; not yet unique on the host.
    pub name: Option<String>,
    /// Its UUID or container id.
    pub uuid: Option<String>,
    /// The kind of VM.
    pub kind: VmKind,
    /// `running` and the like.
    pub state: Option<String>,
    /// The VM's process.
    pub pid: Option<u32>,
    /// Further processes that do I/O for this VM only.
    pub workers: Vec<u32>,
    /// The path of the cgroup created for it, if there is one.
    pub cgroup: Option<String>,
    /// Virtual processors.
    pub vcpus: Option<i64>,
    /// Memory.
    pub memory_bytes: Option<i64>,
    /// Its disks; `None` if the inventory does not know them.
    pub disks: Option<Vec<FoundDisk>>,
    /// The sockets on which vhost-user back ends serve it.
    pub backends: Vec<String>,
    /// The address of its QMP, if another process uses its socket exclusively.
    pub address: Option<QmpAddress>,
    /// The QMP sockets on which its process listens, from its command line.
    pub monitors: Vec<String>,
    /// Whether its name is from the user of weir or from a file that only root writes, not from its
    /// own process.
    pub vouched: bool,
}

/// A virtual disk as found by one inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundDisk {
    /// The name in the VM.
    pub vdisk: Option<String>,
    /// The location of its data.
    pub source: Source,
    /// The process that has the images open, if it is not the VM's own.
    pub holder: Option<u32>,
    /// The backing images, as far as known; they are also read from the headers of image formats.
    pub backing: Vec<Layer>,
    /// `raw`, `qcow2`, ...
    pub format: Option<String>,
    /// `virtio-blk`, ...
    pub bus: Option<String>,
    /// The name of the device in the VM's configuration.
    pub device: Option<String>,
    /// The name of QEMU's drive, given or generated.
    pub drive: Option<String>,
    /// The name of QEMU's block node.
    pub node: Option<String>,
    /// `threads`, `native`, `io_uring`.
    pub aio: Option<String>,
    /// Whether the host's page cache is bypassed.
    pub direct: Option<bool>,
    /// Whether the VM may not write.
    pub read_only: Option<bool>,
    /// Size that the VM sees.
    pub bytes: Option<i64>,
    /// Offset of a raw disk in its file or device.
    pub offset_bytes: u64,
    /// Size of a raw disk in its file or device.
    pub size_bytes: Option<u64>,
    /// Its tapdisk, if one serves it.
    pub tapdisk: Option<TapdiskKey>,
    /// The control socket of its tapdisk.
    pub control: Option<String>,
}

/// A disk of a tapdisk, as its requests in io_uring name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TapdiskKey {
    /// The process.
    pub pid: u32,
    /// Of [`crate::tapdisk::mark::disk_key`].
    pub disk: u64,
}

/// The location of the data of a virtual disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// Not reported.
    #[default]
    Unknown,
    /// A file or a device, by the path that the VM's process opened.
    File(String),
    /// A vhost-user back end, by its socket.
    Backend(String),
    /// Not on this host, or in memory: the address.
    Elsewhere(String),
    /// A drive without a medium.
    Empty,
}

/// A backing image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layer {
    /// Path that the VM's process opened.
    pub path: String,
    /// `raw`, `qcow2`, ...
    pub format: Option<String>,
}

impl FoundVm {
    /// A VM of this kind whose other fields are unknown.
    pub fn new(kind: VmKind) -> FoundVm {
        FoundVm {
            name: None,
            uuid: None,
            kind,
            state: None,
            pid: None,
            workers: Vec::new(),
            cgroup: None,
            vcpus: None,
            memory_bytes: None,
            disks: None,
            backends: Vec::new(),
            address: None,
            monitors: Vec::new(),
            vouched: false,
        }
    }
}
