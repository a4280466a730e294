//! A VM of the experiments: a program that copies, on a disk of its own, at a fixed rate.
//!
//! The thesis ran a `cp` that ends after 60 seconds in each VM. Here fio reads and writes one block after
//! the other in turn, in requests of 44 KiB, the most that Xen's block ring took (11 pages).

use std::fs;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use weir_guest::LoopDisk;

/// Size of a disk.
const DISK_MIB: u64 = 128;

/// Length of a request.
const REQUEST_BYTES: u64 = 44 << 10;

/// A VM that copies; it ends when it is dropped.
pub struct Vm {
    /// Its name.
    pub name: String,
    disk: LoopDisk,
    program: Child,
}

impl Vm {
    /// Starts one that does so many requests a second, reads and writes each half.
    ///
    /// # Errors
    /// When there can be no loop device, or fio does not start.
    pub fn start(name: &str, requests_per_second: u32) -> Result<Vm> {
        let disk = LoopDisk::new(DISK_MIB)?;
        let half = requests_per_second / 2;
        let program = Command::new("fio")
            .args(["--name=copy", "--rw=rw", "--ioengine=libaio", "--iodepth=4"])
            .args(["--direct=1", "--time_based", "--runtime=86400", "--thread"])
            .args(["--allow_file_create=0", "--output=/dev/null"])
            .arg(format!("--bs={REQUEST_BYTES}"))
            .arg(format!("--rate_iops={half},{half}"))
            .arg(format!("--filename={}", disk.path()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start fio")?;
        Ok(Vm {
            name: name.into(),
            disk,
            program,
        })
    }

    /// The device that is its disk, as `/dev/loop3`.
    pub fn device(&self) -> &str {
        self.disk.path()
    }

    /// What tells weir that this process is a VM.
    pub fn declaration(&self) -> String {
        format!("{}=pid:{}", self.name, self.program.id())
    }

    /// What it has written so far, in bytes, as the kernel counts it (Documentation/block/stat.rst).
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn written_bytes(&self) -> Result<f64> {
        let name = self.device().trim_start_matches("/dev/");
        let path = format!("/sys/block/{name}/stat");
        let text = fs::read_to_string(&path).context(path)?;
        let sectors = text.split_whitespace().nth(6).and_then(|n| n.parse().ok());
        let sectors: f64 = sectors.context("sectors written")?;
        Ok(sectors * 512.0)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // Its disk can go only when it no longer has it open.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// What all VMs have written so far, in MiB.
///
/// # Errors
/// As [`Vm::written_bytes`].
pub fn written_mib(vms: &[Vm]) -> Result<f64> {
    let each = vms.iter().map(Vm::written_bytes);
    let bytes: f64 = each.sum::<Result<f64>>()?;
    Ok(bytes / f64::from(1 << 20))
}
