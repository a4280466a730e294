//! What one inventory found, before the inventories' findings are made one.

use weir_model::inventory::VmKind;

use crate::qmp::Address;

/// A VM as one inventory knows it; what it does not know is `None`, and another may fill it in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundVm {
    /// Its name; not yet unique on the host.
    pub name: Option<String>,
    /// Its UUID or container id.
    pub uuid: Option<String>,
    /// What it is.
    pub kind: VmKind,
    /// `running` and the like.
    pub state: Option<String>,
    /// The process that is it.
    pub pid: Option<u32>,
    /// Further processes that work for it alone.
    pub workers: Vec<u32>,
    /// The path of the cgroup made for it, if there is one.
    pub cgroup: Option<String>,
    /// Virtual processors.
    pub vcpus: Option<i64>,
    /// Memory.
    pub memory_bytes: Option<i64>,
    /// Its disks; `None` if the inventory does not know them.
    pub disks: Option<Vec<FoundDisk>>,
    /// The sockets on which vhost-user back ends serve it.
    pub backends: Vec<String>,
    /// Where its QMP is to be had, if somebody keeps its socket for himself.
    pub address: Option<Address>,
    /// The QMP sockets at which its process listens, by its command line.
    pub monitors: Vec<String>,
    /// Whether its name is from the user of weir or from a file that only root writes, not from its
    /// own process.
    pub vouched: bool,
}

/// A virtual disk as one inventory knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundDisk {
    /// As the VM sees it.
    pub vdisk: Option<String>,
    /// Where its data are.
    pub source: Source,
    /// The process that has them open, if that is not the VM's own.
    pub holder: Option<u32>,
    /// The images below, as far as they are told; a format's own header tells of them as well.
    pub backing: Vec<Layer>,
    /// `raw`, `qcow2`, ...
    pub format: Option<String>,
    /// `virtio-blk`, ...
    pub bus: Option<String>,
    /// The name of the device in the VM's configuration.
    pub device: Option<String>,
    /// The name of QEMU's drive, given or made up.
    pub drive: Option<String>,
    /// The name of QEMU's block node.
    pub node: Option<String>,
    /// `threads`, `native`, `io_uring`.
    pub aio: Option<String>,
    /// Whether the host's page cache is passed by.
    pub direct: Option<bool>,
    /// Whether the VM may not write.
    pub read_only: Option<bool>,
    /// Size that the VM sees.
    pub bytes: Option<i64>,
    /// Where in its file or device a raw disk begins.
    pub offset_bytes: u64,
    /// How much of its file or device a raw disk is.
    pub size_bytes: Option<u64>,
}

/// Where the data of a virtual disk are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// Nobody says.
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

/// An image below another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layer {
    /// By the path that the VM's process opened.
    pub path: String,
    /// `raw`, `qcow2`, ...
    pub format: Option<String>,
}

impl FoundVm {
    /// A VM of which no more is known.
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
