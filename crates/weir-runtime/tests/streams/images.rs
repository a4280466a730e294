//! Stream `IOpath`: requests of QEMU are tied to its virtual disks by the file of the image and the
//! offset there, with each kind of asynchronous I/O.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use weir_model::Value;
use weir_tap::ebpf::{DeviceChoice, LiveOptions};
use weir_tap::inventory::{InventoryWatch, WatchOptions};
use weir_testing::{LoopDisk, Qmp, Scratch, run, skipped, wait_until};

use super::files::{FileSystem, number_at, text, text_at};
use super::{ask_with, int, turn};

const QEMU: &str = "qemu-system-x86_64";

const MIB: u64 = 1 << 20;

/// The size of each image.
const IMAGE_MIB: u64 = 8;

/// Writes to each disk.
const WRITES: u64 = 6;

/// A disk of the machine: its image, the driver of its format, and options of the file's driver.
struct MachineDisk {
    image: String,
    format: &'static str,
    options: &'static str,
    driver: &'static str,
}

impl MachineDisk {
    fn new(image: &Path, format: &'static str, options: &'static str) -> MachineDisk {
        MachineDisk {
            image: text(image).to_owned(),
            format,
            options,
            driver: "file",
        }
    }

    fn args(&self, number: usize) -> Vec<String> {
        let MachineDisk {
            image,
            format,
            options,
            driver,
        } = self;
        let file = format!("driver={driver},filename={image},node-name=f{number},{options}");
        let node = format!("driver={format},file=f{number},node-name=n{number}");
        let device = format!("virtio-blk-pci,drive=n{number},id=disk{number},share-rw=on");
        let all = ["-blockdev", &file, "-blockdev", &node, "-device", &device];
        all.map(str::to_owned).to_vec()
    }
}

/// A QEMU whose guest never starts.
struct Machine {
    qemu: Child,
    qmp: Qmp,
    _folder: Scratch,
}

impl Machine {
    fn start(disks: &[MachineDisk]) -> Machine {
        let folder = Scratch::new();
        let socket = folder.path().join("qmp");
        let disks = disks.iter().enumerate();
        let qemu = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", QEMU, "-S", "-nodefaults"])
            .args(["-display", "none", "-name", "still", "-M", "pc", "-m", "32"])
            .args(["-accel", "tcg"])
            .args(disks.flat_map(|(number, disk)| disk.args(number)))
            .args([
                "-qmp",
                &format!("unix:{},server=on,wait=off", text(&socket)),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let qemu = qemu.expect("setpriv of util-linux is there");
        let mut qmp = None;
        wait_until("QEMU accepts a connection", || {
            qmp = Qmp::connect(&socket).ok();
            qmp.is_some()
        });
        Machine {
            qemu,
            qmp: qmp.expect("it is connected"),
            _folder: folder,
        }
    }

    /// Writes a block of the disk, as its guest would.
    fn write(&mut self, disk: usize, offset: u64) {
        let device = format!("/machine/peripheral/disk{disk}/virtio-backend");
        let line = format!("qemu-io -d {device} \"write {offset} 4k\"");
        let called = self
            .qmp
            .call("human-monitor-command", json!({"command-line": line}));
        let output = called.expect("QEMU executes it");
        let output = output.to_string();
        assert!(!output.contains("Error"), "{line}: {output}");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// A row with data.
#[derive(Debug)]
struct Row {
    vm: Option<String>,
    vdisk: Option<String>,
    vsector: Option<i64>,
    bytes: i64,
    path: Option<String>,
}

/// The offset of a write to a disk.
fn offset(disk: usize, write: u64) -> u64 {
    write * MIB + disk as u64 * (64 << 10)
}

#[test]
fn requests_of_qemu_are_those_of_the_disk_with_the_image() {
    let test = "requests_of_qemu_are_those_of_the_disk_with_the_image";
    let Some(_turn) = turn(test) else {
        return;
    };
    if run(QEMU, &["--version"]).is_err() {
        return skipped(test, format!("{QEMU} is not installed"));
    }
    let system = FileSystem::new("ext4");
    let device = LoopDisk::new(IMAGE_MIB).expect("a loop device");
    for name in ["uring", "native", "threads", "cached", "shared"] {
        system.file(name, (IMAGE_MIB * MIB) as usize);
    }
    let path = |name: &str| system.folder.join(name);
    let qcow = path("qcow");
    let size = format!("{IMAGE_MIB}M");
    run(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", text(&qcow), &size],
    )
    .expect("an image");
    // A symbolic link, as libvirt's pools have.
    std::os::unix::fs::symlink(path("native"), path("link")).expect("a link");
    let direct = "cache.direct=on,aio=threads";
    let shared = "cache.direct=on,aio=threads,locking=off";
    let disks = [
        MachineDisk::new(&path("uring"), "raw", "cache.direct=on,aio=io_uring"),
        MachineDisk::new(&path("link"), "raw", "cache.direct=on,aio=native"),
        MachineDisk::new(&path("threads"), "raw", direct),
        MachineDisk::new(&path("cached"), "raw", "aio=io_uring"),
        MachineDisk {
            driver: "host_device",
            ..MachineDisk::new(
                Path::new(device.path()),
                "raw",
                "cache.direct=on,aio=native",
            )
        },
        MachineDisk::new(&qcow, "qcow2", direct),
        MachineDisk::new(&path("shared"), "raw", shared),
        MachineDisk::new(&path("shared"), "raw", shared),
    ];
    run("sync", &["-f", text(&system.folder)]).expect("sync");
    let mut machine = Machine::start(&disks);
    let watch = InventoryWatch::start(&WatchOptions::default()).expect("the host can be watched");
    let options = LiveOptions {
        devices: DeviceChoice::All,
        inventory: Some(watch),
        ..LiveOptions::default()
    };
    let query = "select vm, vdisk, vsector, bytes, path, pdisk from IOpath \
                 where op = 'w' and (untied is null or untied = 'no_file_system')";
    let (ran, ()) = ask_with(query, &options, || {
        for write in 0..WRITES {
            (0..disks.len()).for_each(|disk| machine.write(disk, offset(disk, write)));
        }
        // A kernel thread writes what is in the page cache.
        run("sync", &["-f", text(&system.folder)]).expect("sync");
        // Another process is not the VM.
        let to = format!("of={}", text(&path("uring")));
        run(
            "dd",
            &[
                "if=/dev/zero",
                &to,
                "bs=4k",
                "count=1",
                "oflag=direct",
                "conv=notrunc",
            ],
        )
        .expect("dd writes");
    });
    let own = [system.disk.path(), device.path()].map(Value::text);
    let rows = ran
        .rows
        .iter()
        .filter(|row| own.contains(&row[5]))
        .map(|row| Row {
            vm: text_at(row, 0),
            vdisk: text_at(row, 1),
            vsector: number_at(row, 2),
            bytes: int(&row[3]),
            path: text_at(row, 4),
        });
    let rows: Vec<Row> = rows.collect();

    for (disk, letter) in ["a", "b", "c", "d", "e"].iter().enumerate() {
        let name = format!("/dev/vd{letter}");
        let own = rows.iter().filter(|row| row.vdisk.as_ref() == Some(&name));
        let own: Vec<&Row> = own.collect();
        let sectors: BTreeSet<i64> = own.iter().filter_map(|row| row.vsector).collect();
        let plan: BTreeSet<i64> = (0..WRITES)
            .map(|write| (offset(disk, write) / 512) as i64)
            .collect();
        assert_eq!(sectors, plan, "{name}: {rows:?}");
        assert!(own.iter().all(|row| row.bytes == 4096), "{own:?}");
        assert!(
            own.iter().all(|row| row.vm.as_deref() == Some("still")),
            "{own:?}"
        );
    }
    let of = |name: &str| -> Vec<&Row> {
        let path = text(&path(name)).to_owned();
        rows.iter()
            .filter(|row| row.path.as_ref() == Some(&path))
            .collect()
    };
    let of_dd = of("uring").into_iter().filter(|row| row.vdisk.is_none());
    let of_dd: Vec<&Row> = of_dd.collect();
    assert!(of_dd.len() == 1 && of_dd[0].vm.is_none(), "{of_dd:?}");
    // The tables of this format are not read: the disk is known, and not the sector.
    let qcow = of("qcow");
    assert!(qcow.len() as u64 >= WRITES, "{qcow:?}");
    assert!(
        qcow.iter()
            .all(|row| row.vdisk.as_deref() == Some("/dev/vdf") && row.vsector.is_none()),
        "{qcow:?}"
    );
    // One of two disks.
    let shared = of("shared");
    assert_eq!(shared.len() as u64, 2 * WRITES, "{shared:?}");
    assert!(
        shared
            .iter()
            .all(|row| row.vdisk.is_none() && row.vsector.is_none())
    );
    let counted = |cause: &str| -> i64 {
        let own = ran
            .counts
            .iter()
            .filter(|count| count.counter == "untied_vdisk" && count.cause == Some(cause));
        own.map(|count| count.total).sum()
    };
    let expected = [shared.len(), qcow.len()].map(|rows| rows as i64);
    assert_eq!(
        [counted("ambiguous"), counted("no_map")],
        expected,
        "{:?}",
        ran.counts
    );
    fs::remove_file(path("link")).expect("it is removed");
}
