//! The kernels that guests run, and the machines that QEMU emulates for them.

/// A processor architecture, and the machine of its guests.
#[derive(Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Its name in Rust.
    pub name: &'static str,
    /// Its name in Debian.
    pub(crate) debian: &'static str,
    pub(crate) emulator: &'static str,
    /// The options for its machine and processor.
    pub(crate) machine: &'static [&'static str],
    /// The options for the serial port that controls the guest, of the character device `port`.
    pub(crate) port: &'static [&'static str],
    /// The kernel's console, and the parameter `port` of init.sh.
    pub(crate) command_line: &'static str,
}

impl Architecture {
    /// Whether it is another one than the host's.
    pub(crate) fn is_foreign(&self) -> bool {
        self.name != std::env::consts::ARCH
    }
}

/// Machine `pc` with one processor boots fastest in emulation; `microvm` hangs at times. Without
/// CMPXCHG16B: with it, Debian 13's 6.12 failed in its memory allocator in 2 of 22 boots of QEMU
/// 7.2, and without it in none.
pub static X86_64: Architecture = Architecture {
    name: "x86_64",
    debian: "amd64",
    emulator: "qemu-system-x86_64",
    machine: &["-M", "pc", "-cpu", "max,-cx16"],
    port: &["-serial", "chardev:port"],
    // On a busy host the emulated timer is too late for the check at boot, which then panics.
    command_line: "console=ttyS0 panic=-1 quiet no_timer_check",
};

/// The same with CMPXCHG16B. From 7.0 on, without it the kernel has no memory for the storage of
/// tasks that BPF programs use (`kmalloc_nolock` in mm/slub.c).
pub static X86_64_CX16: Architecture = Architecture {
    machine: &["-M", "pc", "-cpu", "max"],
    ..X86_64
};

/// Its machine has one serial port on the board.
pub static AARCH64: Architecture = Architecture {
    name: "aarch64",
    debian: "arm64",
    emulator: "qemu-system-aarch64",
    machine: &["-M", "virt", "-cpu", "cortex-a72"],
    port: &["-device", "pci-serial,chardev=port"],
    command_line: "console=ttyAMA0 panic=-1 quiet port=/dev/ttyS0",
};

/// A kernel of Debian, and its modules for a guest.
#[derive(Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// The architecture that it is built for.
    pub architecture: &'static Architecture,
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
    architecture: &X86_64,
    folder: "guest",
    package: "linux-image-cloud-amd64",
    suite: None,
    is_usual: true,
};

/// The kernel line of Debian 13, with NVMe multipath built in. Its request flags are in an
/// anonymous enumeration.
pub static LINUX_6_12: GuestKernel = GuestKernel {
    architecture: &X86_64,
    folder: "guest-6.12",
    package: "linux-image-6.12-cloud-amd64",
    suite: None,
    is_usual: true,
};

/// The kernel of Debian 12 for all machines.
pub static LINUX_6_1_FULL: GuestKernel = GuestKernel {
    architecture: &X86_64,
    folder: "guest-6.1-full",
    package: "linux-image-amd64",
    suite: None,
    is_usual: false,
};

/// The line of Debian 13 for all machines, with an I/O scheduler by default.
pub static LINUX_6_12_FULL: GuestKernel = GuestKernel {
    architecture: &X86_64,
    folder: "guest-6.12-full",
    package: "linux-image-6.12-amd64",
    suite: None,
    is_usual: false,
};

/// The kernel of Debian 12 with PREEMPT_RT, in which completions run in threads.
pub static LINUX_6_1_RT: GuestKernel = GuestKernel {
    architecture: &X86_64,
    folder: "guest-6.1-rt",
    package: "linux-image-rt-amd64",
    suite: None,
    is_usual: false,
};

/// The line of Debian 13 with PREEMPT_RT.
pub static LINUX_6_12_RT: GuestKernel = GuestKernel {
    architecture: &X86_64,
    folder: "guest-6.12-rt",
    package: "linux-image-6.12-rt-amd64",
    suite: None,
    is_usual: false,
};

/// The kernel of Debian 13 for virtual machines.
pub static LINUX_TRIXIE: GuestKernel = GuestKernel {
    architecture: &X86_64,
    folder: "guest-trixie",
    package: "linux-image-cloud-amd64",
    suite: Some("trixie"),
    is_usual: false,
};

/// The kernel of Debian testing for virtual machines: 7.2 in November 2026.
pub static LINUX_TESTING: GuestKernel = GuestKernel {
    architecture: &X86_64_CX16,
    folder: "guest-testing",
    package: "linux-image-cloud-amd64",
    suite: Some("testing"),
    is_usual: false,
};

/// The newest kernel for Debian 13, for all machines: 7.3 in November 2026.
pub static LINUX_BACKPORTS: GuestKernel = GuestKernel {
    architecture: &X86_64_CX16,
    folder: "guest-backports",
    package: "linux-image-amd64",
    suite: Some("trixie-backports"),
    is_usual: false,
};

/// The kernel of Debian 12 for virtual machines on arm64.
pub static LINUX_6_1_ARM64: GuestKernel = GuestKernel {
    architecture: &AARCH64,
    folder: "guest-6.1-arm64",
    package: "linux-image-cloud-arm64",
    suite: Some("bookworm"),
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
    &LINUX_6_1_ARM64,
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
    "dm_delay",
    "aesni_intel",
    "xts",
    "raid1",
    "raid456",
    "null_blk",
    "scsi_debug",
    "lzo_rle",
    "zram",
    "loop",
    "virtio_console",
    "virtio_net",
    "xfs",
    "btrfs",
];
