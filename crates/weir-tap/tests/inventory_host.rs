//! The inventory of this host: its real processes and block devices.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::json;
use weir_model::inventory::BlockDevice;
use weir_tap::inventory::{Declared, InventoryWatch, ScanScope, Snapshot, WatchOptions};
use weir_tap::qmp::{QemuMonitor, QmpAddress};
use weir_testing::{LoopDisk, Scratch, TIMEOUT, skip, skipped, wait_until};

/// A process that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch(declared: &[&str]) -> std::sync::Arc<InventoryWatch> {
    let declared: Vec<Declared> = declared.iter().map(|d| d.parse().unwrap()).collect();
    InventoryWatch::start(&WatchOptions {
        declared,
        ..WatchOptions::default()
    })
    .unwrap()
}

#[test]
fn the_devices_are_those_of_the_kernel() {
    let snapshot = watch(&[]).snapshot();
    let partitions = std::fs::read_to_string("/proc/partitions").unwrap();
    for line in partitions.lines().skip(2) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [major, minor, kib, name] = words[..] else {
            panic!("{line}");
        };
        let is_it = |d: &&BlockDevice| d.device.as_str() == format!("/dev/{name}");
        let device = snapshot.devices.iter().find(is_it);
        if kib == "0" {
            continue;
        }
        let device = device.unwrap_or_else(|| panic!("{name} is missing"));
        let number = (device.major.to_string(), device.minor.to_string());
        assert_eq!(number, (major.to_owned(), minor.to_owned()));
        assert_eq!((device.bytes / 1024).to_string(), kib);
    }
}

#[test]
fn a_process_that_was_declared_is_a_vm_until_it_ends() {
    let mut child = Running(Command::new("sleep").arg("600").spawn().unwrap());
    let pid = child.0.id();
    let watch = watch(&[&format!("nap=pid:{pid}")]);
    let snapshot = watch.snapshot();
    let vm = &snapshot.vms[snapshot.pids[&pid] as usize];
    assert_eq!((vm.name.as_str(), vm.pid), ("nap", Some(i64::from(pid))));
    assert_eq!(vm.origin.as_str(), "declared");
    assert!(vm.started.is_some());

    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let snapshot = watch.look(ScanScope::Pid(pid), TIMEOUT);
    assert!(snapshot.vms.iter().all(|vm| vm.name.as_str() != "nap"));
    assert!(!snapshot.pids.contains_key(&pid));
    assert!(watch.generation() > 1);
}

#[test]
fn a_process_without_a_vm_is_not_in_the_inventory() {
    let watch = watch(&[]);
    let child = Running(Command::new("sleep").arg("600").spawn().unwrap());
    let pid = child.0.id();
    let snapshot = watch.look(ScanScope::Pid(pid), TIMEOUT);
    assert!(!snapshot.pids.contains_key(&pid));
    assert!(snapshot.vms.iter().all(|vm| vm.pid != Some(i64::from(pid))));
}

#[test]
fn a_loop_device_is_seen_with_its_file_and_what_it_lies_on() {
    const TEST: &str = "a_loop_device_is_seen_with_its_file_and_what_it_lies_on";
    let disk = match LoopDisk::new(4) {
        Ok(disk) => disk,
        Err(why) => return skipped(TEST, format!("{why:#}")),
    };
    let watch = watch(&[]);
    let until = Instant::now() + TIMEOUT;
    let device = loop {
        let snapshot = watch.look(ScanScope::All, TIMEOUT);
        let is_it = |d: &&BlockDevice| d.device.as_str() == disk.path();
        if let Some(device) = snapshot.devices.iter().find(is_it) {
            break device.clone();
        }
        assert!(Instant::now() < until, "{} was not seen", disk.path());
    };
    assert_eq!(device.kind.as_str(), "loop");
    assert_eq!(device.bytes, 4 << 20);
    assert_eq!(device.file.map(|f| f.as_str()), disk.image().to_str());
    assert_eq!(device.disk, device.device);
}

#[test]
fn a_qemu_is_a_vm_with_the_disks_that_it_has_open() {
    const TEST: &str = "a_qemu_is_a_vm_with_the_disks_that_it_has_open";
    let folder = Scratch::new();
    let image = folder.image("a.raw", 1);
    let blockdev = format!("driver=raw,node-name=n0,file.driver=file,file.filename={image}");
    let qemu = Command::new("qemu-system-x86_64")
        .args([
            "-M",
            "pc,accel=tcg",
            "-display",
            "none",
            "-nodefaults",
            "-S",
            "-m",
            "64",
        ])
        .args(["-name", "guest=weir-inventory", "-blockdev", &blockdev])
        .args(["-device", "virtio-blk-pci,drive=n0,id=disk0"])
        .spawn();
    let qemu = match qemu {
        Ok(qemu) => Running(qemu),
        Err(error) => return skipped(TEST, format!("qemu-system-x86_64: {error}")),
    };
    let pid = qemu.0.id();
    let watch = watch(&[]);
    let opened = |s: &Snapshot| {
        s.disks
            .iter()
            .any(|d| d.disk.vm.as_str() == "weir-inventory" && d.disk.bytes.is_some())
    };
    let until = Instant::now() + TIMEOUT;
    let mut snapshot = watch.snapshot();
    while !opened(&snapshot) {
        assert!(Instant::now() < until, "{:?}", snapshot.vms);
        std::thread::sleep(Duration::from_millis(50));
        snapshot = watch.look(ScanScope::All, TIMEOUT);
    }
    let vm = &snapshot.vms[snapshot.pids[&pid] as usize];
    assert_eq!(
        (vm.name.as_str(), vm.kind.as_str()),
        ("weir-inventory", "qemu")
    );
    assert_eq!(
        (vm.pid, vm.memory_bytes),
        (Some(i64::from(pid)), Some(64 << 20))
    );
    let disk = &snapshot
        .disks
        .iter()
        .find(|d| d.disk.vm == vm.name)
        .unwrap()
        .disk;
    assert_eq!(disk.vdisk.as_str(), "/dev/vda");
    assert_eq!(disk.image.map(|i| i.as_str()), Some(&*image));
    assert_eq!(disk.device.map(|d| d.as_str()), Some("disk0"));
    assert_eq!(
        (disk.bytes, disk.format.map(|f| f.as_str())),
        (Some(1 << 20), Some("raw"))
    );

    drop(qemu);
    let gone = watch.look(ScanScope::Pid(pid), TIMEOUT);
    assert!(
        gone.vms
            .iter()
            .all(|vm| vm.name.as_str() != "weir-inventory")
    );
}

/// Starts a program; prints a line if it is not installed.
fn start(test: &str, program: &str, arguments: &[&str]) -> Option<Running> {
    match Command::new(program).args(arguments).spawn() {
        Ok(child) => Some(Running(child)),
        Err(error) => skip(test, format!("{program}: {error}")),
    }
}

/// Waits until `seen` holds.
fn until(
    watch: &InventoryWatch,
    what: &str,
    seen: impl Fn(&Snapshot) -> bool,
) -> std::sync::Arc<Snapshot> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let snapshot = watch.look(ScanScope::All, TIMEOUT);
        if seen(&snapshot) {
            return snapshot;
        }
        assert!(
            Instant::now() < end,
            "{what}: {:?}, {:?}",
            snapshot.vms,
            snapshot.disks
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_disk_that_is_plugged_in_later_is_seen_by_its_monitor() {
    const TEST: &str = "a_disk_that_is_plugged_in_later_is_seen_by_its_monitor";
    let folder = Scratch::new();
    let (first, second, socket) = (folder.image("a", 1), folder.image("b", 1), folder.file("q"));
    let blockdev = format!("driver=raw,node-name=n0,file.driver=file,file.filename={first}");
    let monitor = format!("unix:{socket},server=on,wait=off");
    let arguments = [
        "-M",
        "pc,accel=tcg",
        "-display",
        "none",
        "-nodefaults",
        "-S",
        "-m",
        "64",
        "-name",
        "weir-hotplug",
        "-blockdev",
        &blockdev,
        "-device",
        "virtio-blk-pci,drive=n0,id=disk0",
        "-qmp",
        &monitor,
    ];
    let Some(_qemu) = start(TEST, "qemu-system-x86_64", &arguments) else {
        return;
    };
    let watch = watch(&[]);
    let is_it = |vm: &weir_model::Symbol| vm.as_str() == "weir-hotplug";
    until(&watch, "the state is reported", |s| {
        let vm = s.vms.iter().find(|vm| is_it(&vm.name));
        vm.is_some_and(|vm| vm.state.is_some_and(|state| state.as_str() == "prelaunch"))
    });
    let add = |qemu: &mut dyn QemuMonitor| {
        let node = json!({"driver": "raw", "node-name": "n1",
            "file": {"driver": "file", "filename": second}});
        qemu.execute("blockdev-add", node)?;
        qemu.execute(
            "device_add",
            json!({"driver": "virtio-blk-pci", "drive": "n1", "id": "hot"}),
        )
    };
    QmpAddress::Socket(socket.into())
        .visit(TIMEOUT, add)
        .unwrap();
    let snapshot = until(&watch, "the disk is seen", |s| {
        s.disks.iter().filter(|d| is_it(&d.disk.vm)).count() == 2
    });
    let hot = snapshot
        .disks
        .iter()
        .find(|d| is_it(&d.disk.vm) && d.disk.vdisk.as_str() == "/dev/vdb")
        .unwrap();
    assert_eq!(hot.disk.device.map(|d| d.as_str()), Some("hot"));
    assert_eq!(hot.disk.image.map(|i| i.as_str()), Some(second.as_str()));
    assert_eq!(
        (hot.disk.bytes, hot.disk.bus.map(|b| b.as_str())),
        (Some(1 << 20), Some("virtio-blk"))
    );
}

#[test]
fn a_vhost_user_back_end_works_for_its_vm() {
    const TEST: &str = "a_vhost_user_back_end_works_for_its_vm";
    let folder = Scratch::new();
    let (image, socket) = (folder.image("a", 1), folder.file("s"));
    let node = format!("driver=file,node-name=n0,filename={image}");
    let export = format!(
        "type=vhost-user-blk,id=e0,node-name=n0,writable=on,addr.type=unix,addr.path={socket}"
    );
    let serve = ["--blockdev", &node, "--export", &export];
    let Some(backend) = start(TEST, "qemu-storage-daemon", &serve) else {
        return;
    };
    wait_until("the back end listens", || {
        std::path::Path::new(&socket).exists()
    });
    let chardev = format!("socket,id=c0,path={socket}");
    let arguments = [
        "-M",
        "pc,accel=tcg,memory-backend=m",
        "-display",
        "none",
        "-nodefaults",
        "-S",
        "-m",
        "64",
        "-object",
        "memory-backend-memfd,id=m,size=64M,share=on",
        "-name",
        "weir-backend",
        "-chardev",
        &chardev,
        "-device",
        "vhost-user-blk-pci,chardev=c0,id=disk0",
    ];
    let Some(_qemu) = start(TEST, "qemu-system-x86_64", &arguments) else {
        return;
    };
    let watch = watch(&[]);
    let snapshot = until(&watch, "the back end is found", |s| {
        s.pids.contains_key(&backend.0.id())
    });
    let vm = &snapshot.vms[snapshot.pids[&backend.0.id()] as usize];
    assert_eq!(vm.name.as_str(), "weir-backend");
    let disk = &snapshot
        .disks
        .iter()
        .find(|d| d.disk.vm == vm.name)
        .unwrap()
        .disk;
    assert_eq!(
        (disk.vdisk.as_str(), disk.found_by.as_str()),
        ("/dev/vda", Some("process"))
    );
}
