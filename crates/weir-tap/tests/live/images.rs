//! [`Images`]: disk images in an ext4 file system on a device of the test, processes that act as
//! VMs, and an inventory of both that locates the images on the real device.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;
use weir_model::inventory::{Disk, Vm, VmKind};
use weir_tap::ebpf::{DeviceChoice, LiveOptions};
use weir_tap::inventory::{Image, InventoryWatch, LaidDisk, Layouts, ScanScope, Snapshot};

use weir_testing::{LoopDisk, run};

use crate::{Bench, bench, skip};

/// A file system with images.
pub struct Images {
    folder: PathBuf,
}

/// A VM: its name and its disks.
#[derive(Clone, Debug)]
pub struct Fake {
    /// `vm-a`
    pub name: &'static str,
    /// The name in the VM, and its images, the active one first.
    pub disks: Vec<(&'static str, Vec<Image>)>,
}

/// A device with a file system for images; `None` if there is none, which is reported.
pub fn prepared(test: &str, mebibytes: u64) -> Option<(Bench, Images)> {
    let bench = bench(test, mebibytes)?;
    match Images::new(&bench.disk) {
        Ok(images) => Some((bench, images)),
        Err(why) => skip(test, &why),
    }
}

impl Images {
    /// An empty ext4 on `disk`, mounted.
    pub fn new(disk: &LoopDisk) -> Result<Images> {
        let folder = disk.file_system()?;
        Ok(Images { folder })
    }

    /// The path of an image.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A raw image all of whose sectors are written.
    pub fn raw(&self, name: &str, mebibytes: u64, stamp: u64) -> Image {
        let path = self.path(name);
        write_stamped(&path, 0, mebibytes << 20, stamp);
        raw(path)
    }
}

/// An image of which every byte belongs to the disk.
pub fn raw(path: impl Into<PathBuf>) -> Image {
    Image {
        path: path.into(),
        raw: true,
        offset_bytes: 0,
        bytes: None,
    }
}

/// Writes sectors that contain their own number and that of their disk, and allocates them.
pub fn write_stamped(path: &Path, from_bytes: u64, bytes: u64, stamp: u64) {
    let mut content = Vec::with_capacity(bytes as usize);
    for sector in from_bytes / 512..(from_bytes + bytes) / 512 {
        let mut one = [0; 512];
        one[..8].copy_from_slice(&stamp.to_ne_bytes());
        one[8..16].copy_from_slice(&sector.to_ne_bytes());
        content.extend(one);
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap();
    file.seek(SeekFrom::Start(from_bytes)).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
}

/// The content of a device's sector: the number of its disk, and its sector number on it.
pub fn stamp_at(device: &str, sector: i64) -> (u64, u64) {
    let mut file = File::open(device).unwrap();
    file.seek(SeekFrom::Start(sector as u64 * 512)).unwrap();
    let mut words = [0; 16];
    file.read_exact(&mut words).unwrap();
    let word = |at: usize| u64::from_ne_bytes(words[at..at + 8].try_into().unwrap());
    (word(0), word(8))
}

/// Drops the page cache of a device, so that it is read again.
pub fn forget_cached(device: &str) {
    run("blockdev", &["--flushbufs", device]).unwrap();
}

/// Processes that act as VMs.
static PROCESSES: Mutex<Vec<(u32, &str)>> = Mutex::new(Vec::new());

/// Drops the page cache of a file.
pub fn forget_cached_file(path: &Path) {
    let file = format!("if={}", path.display());
    run("dd", &[&file, "iflag=nocache", "count=0", "status=none"]).unwrap();
}

/// Options for a tap of these devices, with an inventory of `vms`, which finds a process of theirs
/// when it is requested.
pub fn with_inventory(devices: &[&str], vms: Vec<Fake>) -> LiveOptions {
    let mut layouts = Layouts::default();
    let mut pids: HashMap<u32, u32> = HashMap::new();
    let vm_of = |vms: &[Fake], pid: u32| {
        let known = PROCESSES.lock().unwrap();
        let (_, name) = known.iter().find(|(p, _)| *p == pid)?;
        vms.iter().position(|vm| vm.name == *name)
    };
    let mut reported: Option<Snapshot> = None;
    let watch = InventoryWatch::by(Duration::from_secs(1), move |asked: &[ScanScope]| {
        layouts.begin(true);
        for look in asked {
            if let ScanScope::Pid(pid) = look {
                pids.extend(vm_of(&vms, *pid).map(|vm| (*pid, vm as u32)));
            }
        }
        let fresh = asked
            .iter()
            .any(|look| matches!(look, ScanScope::Device(_)));
        let seen = Snapshot {
            vms: vms
                .iter()
                .map(|vm| Vm::new(vm.name, VmKind::Process, "test"))
                .collect(),
            disks: disks(&vms, &mut layouts, fresh),
            pids: pids.clone(),
            ..Snapshot::default()
        };
        if reported.as_ref() == Some(&seen) {
            return None;
        }
        reported = Some(seen.clone());
        Some(seen)
    });
    LiveOptions {
        devices: DeviceChoice::Named(devices.iter().map(|d| (*d).to_owned()).collect()),
        inventory: Some(watch.unwrap_or_else(|e| panic!("{e}"))),
        ..LiveOptions::default()
    }
}

fn disks(vms: &[Fake], layouts: &mut Layouts, fresh: bool) -> Vec<LaidDisk> {
    let mut disks = Vec::new();
    for (vm, fake) in vms.iter().enumerate() {
        for (vdisk, images) in &fake.disks {
            let located = layouts.locate(images, fresh);
            disks.push(LaidDisk {
                tapdisk: None,
                control: None,
                layout: located.layout.clone(),
                disk: Disk::new(fake.name, vdisk, located.found_by, "test"),
                vm: vm as u32,
            });
        }
    }
    disks
}

/// Runs fio as the process of a VM, with threads.
pub fn fio_as(vm: &'static str, file: &Path, options: &str) {
    // It starts after its process is known.
    let mut fio = Command::new("sh")
        .args(["-c", "read go; exec fio \"$@\"", "sh"])
        .args(["--name=load", "--thread", "--norandommap", "--randrepeat=1"])
        .arg(format!("--filename={}", file.display()))
        .args(options.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    PROCESSES.lock().unwrap().push((fio.id(), vm));
    writeln!(fio.stdin.take().unwrap(), "go").unwrap();
    let output = fio.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "fio {options}: {stderr}");
}

/// Reads a whole file with direct I/O, as a process of no VM.
pub fn copy_direct(path: &Path) {
    let from = format!("if={}", path.display());
    run(
        "dd",
        &[
            &from,
            "of=/dev/null",
            "bs=64k",
            "iflag=direct",
            "status=none",
        ],
    )
    .unwrap();
}

/// Writes to a file through the page cache, without writeback to the device.
pub fn write_lazily(path: &Path, from_bytes: u64, content: &[u8]) {
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(from_bytes)).unwrap();
    file.write_all(content).unwrap();
}
