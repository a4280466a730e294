//! A VM of the experiments: a program that copies, on a disk of its own, at a fixed rate.
//!
//! The thesis ran a `cp` of 60 seconds in each VM. Here the load program reads and writes blocks in
//! sequence, in requests of 44 KiB, the maximum of Xen's block ring (11 pages). It sleeps between
//! bursts: a program that limits its rate by busy waiting, as fio does, would distort the
//! measurement.

use std::fs;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use weir_testing::{DiskLoad, Guest, GuestDisk, Kit, LoopDisk};

use crate::{cargo, execute, root};

/// Size of a disk.
const DISK_MIB: u64 = 128;

/// Length of a request.
const REQUEST_BYTES: u64 = 44 << 10;

/// More than a VM completes before it is ended.
const REQUESTS_MAX: u64 = 1 << 40;

/// The load of a real guest: some requests, then a pause, since emulation is slow.
const GUEST_WORK: &str =
    "while :; do load disk=/dev/vda,read=50,write=50,bytes=4096,count=500,depth=4; sleep 1; done";

/// A VM that copies; it ends when it is dropped.
pub struct Vm {
    /// Its name.
    pub name: String,
    // In the order of their end: a disk can only be removed when no process has it open.
    program: Program,
    disk: LoopDisk,
}

/// The source of its requests.
enum Program {
    Copies(Copying),
    Guest(#[expect(dead_code, reason = "it lives as long as the VM")] Guest),
}

/// A load that is killed when it is dropped.
struct Copying(Child);

/// Builds the program that copies.
///
/// # Errors
/// When the build fails.
pub fn build() -> Result<()> {
    let what = ["--package", "weir-testing", "--bin", "load"];
    execute(cargo().args(["build", "--release", "--locked"]).args(what))
}

impl Vm {
    /// Starts a VM with this number of requests per second, half of them reads and half writes.
    ///
    /// # Errors
    /// When no loop device is available, or the program does not start.
    pub fn start(name: &str, requests_per_second: u32) -> Result<Vm> {
        let disk = LoopDisk::new(DISK_MIB)?;
        let load = DiskLoad {
            read: 50,
            write: 50,
            bytes: REQUEST_BYTES,
            count: REQUESTS_MAX,
            depth: 4,
            span: DISK_MIB << 20,
            sequential: true,
            rate: u64::from(requests_per_second),
            ..DiskLoad::on(disk.path())
        };
        let program = Command::new(root().join("target/release/load"))
            .arg(load.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the load program")?;
        Ok(Vm {
            name: name.into(),
            program: Program::Copies(Copying(program)),
            disk,
        })
    }

    /// Boots a real VM in QEMU, with some 500 requests per second.
    ///
    /// # Errors
    /// When no loop device is available, or the guest does not boot.
    pub fn boot(name: &str, kit: &Kit) -> Result<Vm> {
        let disk = LoopDisk::new(DISK_MIB)?;
        let args = GuestDisk::new("d0", disk.path()).args();
        let mut guest = Guest::start(kit, name, &args)?;
        guest.ready()?;
        guest.begin(GUEST_WORK)?;
        Ok(Vm {
            name: name.into(),
            program: Program::Guest(guest),
            disk,
        })
    }

    /// The device of its disk, such as `/dev/loop3`.
    pub fn device(&self) -> &str {
        self.disk.path()
    }

    /// The declaration of this process as a VM; QEMU is detected without one.
    pub fn declaration(&self) -> Option<String> {
        match &self.program {
            Program::Copies(program) => Some(format!("{}=pid:{}", self.name, program.0.id())),
            Program::Guest(_) => None,
        }
    }

    /// Its I/O so far, from the kernel's counters (Documentation/block/stat.rst).
    ///
    /// # Errors
    /// When the counters cannot be read.
    pub fn done(&self) -> Result<Done> {
        let path = format!("/sys/block/{}/stat", self.disk.name());
        let text = fs::read_to_string(&path).context(path)?;
        let fields: Vec<f64> = text
            .split_whitespace()
            .filter_map(|n| n.parse().ok())
            .collect();
        let field = |at: usize| fields.get(at).copied().context("too few fields");
        Ok(Done {
            requests: field(0)? + field(4)?,
            written_mib: field(6)? * 512.0 / f64::from(1 << 20),
        })
    }
}

/// The I/O of VMs since their disks were created.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Reads and writes.
    pub requests: f64,
    /// Data written.
    pub written_mib: f64,
}

/// The I/O of all VMs so far.
///
/// # Errors
/// As [`Vm::done`].
pub fn done(vms: &[Vm]) -> Result<Done> {
    vms.iter().try_fold(Done::default(), |sum, vm| {
        let done = vm.done()?;
        Ok(Done {
            requests: sum.requests + done.requests,
            written_mib: sum.written_mib + done.written_mib,
        })
    })
}

impl Drop for Copying {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
