//! The kernels that guests run.

/// A kernel of Debian, and its modules for a guest.
#[derive(Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// The folder of its kit in cargo's target folder.
    pub(crate) folder: &'static str,
    /// The package that depends on the newest kernel of its line; the kernel's own name changes
    /// with each security update.
    pub(crate) package: &'static str,
    /// The suite of Debian; `None` for those of the host, which is Debian 12.
    pub(crate) suite: Option<&'static str>,
    /// Used by the tests that always run.
    pub is_usual: bool,
}

/// The kernel of Debian 12 for virtual machines: without `block_io_start`.
pub static LINUX_6_1: GuestKernel = GuestKernel {
    folder: "guest",
    package: "linux-image-cloud-amd64",
    suite: None,
    is_usual: true,
};

/// The kernel line of Debian 13, with NVMe multipath built in. Its request flags are in an
/// anonymous enumeration.
pub static LINUX_6_12: GuestKernel = GuestKernel {
    folder: "guest-6.12",
    package: "linux-image-6.12-cloud-amd64",
    suite: None,
    is_usual: true,
};

/// The kernel of Debian 12 for all machines.
pub static LINUX_6_1_FULL: GuestKernel = GuestKernel {
    folder: "guest-6.1-full",
    package: "linux-image-amd64",
    suite: None,
    is_usual: false,
};

/// The line of Debian 13 for all machines, with an I/O scheduler by default.
pub static LINUX_6_12_FULL: GuestKernel = GuestKernel {
    folder: "guest-6.12-full",
    package: "linux-image-6.12-amd64",
    suite: None,
    is_usual: false,
};

/// The kernel of Debian 12 with PREEMPT_RT, in which completions run in threads.
pub static LINUX_6_1_RT: GuestKernel = GuestKernel {
    folder: "guest-6.1-rt",
    package: "linux-image-rt-amd64",
    suite: None,
    is_usual: false,
};

/// The line of Debian 13 with PREEMPT_RT.
pub static LINUX_6_12_RT: GuestKernel = GuestKernel {
    folder: "guest-6.12-rt",
    package: "linux-image-6.12-rt-amd64",
    suite: None,
    is_usual: false,
};

/// The kernel of Debian 13 for virtual machines.
pub static LINUX_TRIXIE: GuestKernel = GuestKernel {
    folder: "guest-trixie",
    package: "linux-image-cloud-amd64",
    suite: Some("trixie"),
    is_usual: false,
};

/// The kernel of Debian testing for virtual machines: 7.2 in November 2026.
pub static LINUX_TESTING: GuestKernel = GuestKernel {
    folder: "guest-testing",
    package: "linux-image-cloud-amd64",
    suite: Some("testing"),
    is_usual: false,
};

/// The newest kernel for Debian 13, for all machines: 7.3 in November 2026.
pub static LINUX_BACKPORTS: GuestKernel = GuestKernel {
    folder: "guest-backports",
    package: "linux-image-amd64",
    suite: Some("trixie-backports"),
    is_usual: false,
};

/// Every kernel, the one that most tests use first.
pub static KERNELS: &[&GuestKernel] = &[
    &LINUX_6_1,
    &LINUX_6_12,
    &LINUX_6_1_FULL,
    &LINUX_6_12_FULL,
    &LINUX_6_1_RT,
    &LINUX_6_12_RT,
    &LINUX_TRIXIE,
    &LINUX_TESTING,
    &LINUX_BACKPORTS,
];

/// Modules that are loaded at boot, where the kernel has them as modules.
pub(crate) const AT_BOOT: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "sd_mod",
    "virtio_scsi",
    "crc32c_generic",
    "ext4",
];

/// Modules that `load_module` of a guest loads.
pub(crate) const ON_DEMAND: &[&str] = &[
    "nvme",
    "mq_deadline",
    "kyber_iosched",
    "bfq",
    "dm_mod",
    "dm_crypt",
    "dm_thin_pool",
    "aesni_intel",
    "xts",
    "raid1",
    "raid456",
    "null_blk",
    "scsi_debug",
    "lzo_rle",
    "zram",
    "loop",
    "xfs",
    "btrfs",
];
