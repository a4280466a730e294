//! A disk of a guest on QEMU's command line: served by QEMU, or by a back end.

use crate::guest::MEMORY_MEBIBYTES;

/// A disk: its file or device on the host, how QEMU does its I/O, and its interface in the guest.
#[derive(Clone, Debug)]
pub struct GuestDisk {
    id: String,
    path: String,
    format: &'static str,
    aio: &'static str,
    scsi: bool,
    direct: bool,
    queues: Option<u32>,
}

impl GuestDisk {
    /// A raw virtio-blk disk with the id `id`, without the host's page cache, `aio=threads`. `path`
    /// is a file, or a device when it begins with `/dev/`.
    pub fn new(id: &str, path: &str) -> GuestDisk {
        GuestDisk {
            id: id.to_owned(),
            path: path.to_owned(),
            format: "raw",
            aio: "threads",
            scsi: false,
            direct: true,
            queues: None,
        }
    }

    /// The image's format, such as `qcow2`.
    pub fn format(self, format: &'static str) -> GuestDisk {
        GuestDisk { format, ..self }
    }

    /// `threads`, `native` or `io_uring`.
    pub fn aio(self, aio: &'static str) -> GuestDisk {
        GuestDisk { aio, ..self }
    }

    /// A disk of the guest's virtio-scsi controller, which [`Guest::start`](crate::Guest::start)
    /// always gives it.
    pub fn scsi(self) -> GuestDisk {
        GuestDisk { scsi: true, ..self }
    }

    /// Through the host's page cache: `cache=writeback`.
    pub fn buffered(self) -> GuestDisk {
        GuestDisk {
            direct: false,
            ..self
        }
    }

    /// A virtio-blk disk with this number of queues; by default one for each of the guest's
    /// processors.
    pub fn queues(self, queues: u32) -> GuestDisk {
        GuestDisk {
            queues: Some(queues),
            ..self
        }
    }

    /// Its name as a device in QEMU, `disks.device` in weir.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The name of its block node.
    pub fn node(&self) -> String {
        format!("{}-format", self.id)
    }

    /// Its command-line options. Two nodes, as in libvirt: one for the file and one for the format.
    pub fn args(&self) -> Vec<String> {
        let driver = if self.path.starts_with("/dev/") {
            "host_device"
        } else {
            "file"
        };
        let direct = if self.direct { "on" } else { "off" };
        let bus = if self.scsi {
            "scsi-hd"
        } else {
            "virtio-blk-pci"
        };
        let (id, node) = (&self.id, self.node());
        let device = match self.scsi {
            true => format!("{bus},drive={node},id={id},serial={id},bus=scsi.0"),
            false => {
                let queues = self.queues.map(|n| format!(",num-queues={n}"));
                let queues = queues.unwrap_or_default();
                format!("{bus},drive={node},id={id},serial={id}{queues}")
            }
        };
        let store = format!(
            "node-name={id}-storage,driver={driver},filename={},aio={},cache.direct={direct},\
             discard=unmap",
            self.path, self.aio
        );
        let format = format!(
            "node-name={node},driver={},file={id}-storage,discard=unmap,cache.direct={direct}",
            self.format
        );
        let words = [
            "-blockdev",
            &store,
            "-blockdev",
            &format,
            "-device",
            &device,
        ];
        words.map(str::to_owned).to_vec()
    }
}

/// A virtio-blk disk that a vhost-user back end serves, so that QEMU sees none of its I/O.
#[derive(Clone, Debug)]
pub struct VhostDisk {
    id: String,
    socket: String,
    queues: Option<u32>,
}

impl VhostDisk {
    /// The disk with the id `id` of the back end that listens at `socket`. QEMU reconnects once a
    /// second when the back end ends.
    pub fn new(id: &str, socket: &str) -> VhostDisk {
        VhostDisk {
            id: id.to_owned(),
            socket: socket.to_owned(),
            queues: None,
        }
    }

    /// With this number of queues; by default one for each of the guest's processors.
    pub fn queues(self, queues: u32) -> VhostDisk {
        VhostDisk {
            queues: Some(queues),
            ..self
        }
    }

    /// Its command-line options.
    pub fn args(&self) -> Vec<String> {
        let (id, socket) = (&self.id, &self.socket);
        let queues = self.queues.map(|n| format!(",num-queues={n}"));
        let words = [
            "-chardev",
            &format!("socket,id={id}-back,path={socket},reconnect=1"),
            "-device",
            &format!(
                "vhost-user-blk-pci,id={id},chardev={id}-back{}",
                queues.unwrap_or_default()
            ),
        ];
        words.map(str::to_owned).to_vec()
    }

    /// The options that let back ends access a guest's memory; once per guest.
    pub fn shared_memory() -> Vec<String> {
        VhostDisk::shared_memory_of(MEMORY_MEBIBYTES)
    }

    /// The same for a guest with this much memory.
    pub fn shared_memory_of(mebibytes: u32) -> Vec<String> {
        let memory = format!("memory-backend-memfd,id=mem,size={mebibytes}M,share=on");
        let size = mebibytes.to_string();
        let words = [
            "-m",
            &size,
            "-machine",
            "memory-backend=mem",
            "-object",
            &memory,
        ];
        words.map(str::to_owned).to_vec()
    }
}
