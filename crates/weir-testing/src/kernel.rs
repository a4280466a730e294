//! The kernels that guests run.

/// A Debian kernel for virtual machines, and the modules that a guest loads.
#[derive(Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// The folder of its kit in cargo's target folder.
    pub(crate) folder: &'static str,
    /// The package that depends on the newest kernel of its series; the name of the kernel's
    /// package changes with each security update.
    pub(crate) package: &'static str,
    /// The modules, each after its dependencies.
    pub(crate) modules: &'static [&'static str],
}

/// The kernel of Debian 12: without `block_io_start`.
pub static LINUX_6_1: GuestKernel = GuestKernel {
    folder: "guest",
    package: "linux-image-cloud-amd64",
    modules: &[
        "virtio_ring",
        "virtio",
        "virtio_pci_legacy_dev",
        "virtio_pci_modern_dev",
        "virtio_pci",
        "virtio_blk",
        "scsi_common",
        "scsi_mod",
        "sd_mod",
        "virtio_scsi",
    ],
};

/// The kernel of Debian 13, with NVMe multipath built in, the I/O schedulers and the device mapper
/// as modules. Its request flags are in an anonymous enumeration.
pub static LINUX_6_12: GuestKernel = GuestKernel {
    folder: "guest-6.12",
    package: "linux-image-6.12-cloud-amd64",
    modules: &[
        "virtio_blk",
        "mq-deadline",
        "kyber-iosched",
        "bfq",
        "dm-mod",
    ],
};

/// All kernels; the first is the one that most tests use.
pub static KERNELS: &[&GuestKernel] = &[&LINUX_6_1, &LINUX_6_12];
