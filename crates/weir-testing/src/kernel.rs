//! The kernels that guests run.

/// A kernel of Debian for virtual machines, and its modules for a guest.
#[derive(Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// The folder of its kit in cargo's target folder.
    pub(crate) folder: &'static str,
    /// The package that depends on the newest kernel of its line; the kernel's own name changes
    /// with each security update.
    pub(crate) package: &'static str,
    /// Modules, each after those it needs.
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

/// The kernel line of Debian 13, with NVMe multipath built in, the I/O schedulers and the device
/// mapper as modules. Its request flags are in an anonymous enumeration.
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

/// Every kernel, the one that most tests use first.
pub static KERNELS: &[&GuestKernel] = &[&LINUX_6_1, &LINUX_6_12];
