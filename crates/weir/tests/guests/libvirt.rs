//! A domain of libvirt gets a disk while it runs, is destroyed under load, renamed and started
//! again. The relations of weir and the rows of requests follow these changes.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::thread;
use std::time::Duration;

use weir_testing::libvirt::{Session, USER, disk, domain};
use weir_testing::{DiskLoad, Kit, LoopDisk, MemoryFolder, Port, Socket, run};

use crate::host::{counts, extents};
use crate::kit;
use crate::places::{Places, adds_up, planned, sectors};
use crate::watching::{Relation, Seen, Watching};

/// The size of each disk, MiB.
pub const DISK: u64 = 16;

#[test]
fn a_libvirt_domain_is_followed() {
    let Some((kit, _turn)) = kit("a_libvirt_domain_is_followed") else {
        return;
    };
    let folder = MemoryFolder::new(200).unwrap();
    let device = LoopDisk::new(200).unwrap();
    let mounted = device.file_system().unwrap();
    let (device, mounted) = (device.path(), mounted.to_str().unwrap());
    let images = [("a.raw", "raw"), ("b.qcow2", "qcow2"), ("c.raw", "raw")];
    let images = images.map(|(name, format)| image(&folder, mounted, name, format));
    let session = Session::start(&folder).unwrap();
    let socket = Socket::bind(Path::new(&folder.file("port"))).unwrap();
    define(&session, &folder, &kit, &images);
    let mut port = session.boot("shop", &socket).unwrap();
    run("sync", &["-f", mounted]).unwrap();

    let vms = Relation::watch(&folder.file("vms"), "select vm, origin, uuid from vms");
    let disks = Relation::watch(&folder.file("disks"), "select vm, vdisk, image from disks");
    vms.wait(1, &[("vm", "shop"), ("origin", "libvirt")]);
    disks.wait(
        1,
        &[("vm", "shop"), ("vdisk", "/dev/sda"), ("image", &images[1])],
    );
    let mut watching = Watching::start(&folder.file("seen"), &[device]);
    let probes = [load("/dev/vda", 9), load("/dev/sda", 10)];
    let mut phases = vec![known(&mut watching, &mut port, "shop", &probes)];
    let before = counts(device);

    // Two disks of one VM on one device.
    let loads = [load("/dev/vda", 1), load("/dev/sda", 2)];
    let asked = || {
        [
            session.requests("shop", "vda").unwrap(),
            session.requests("shop", "sda").unwrap(),
        ]
    };
    let first = asked();
    port.load(&loads).unwrap();
    for ((load, first), then) in loads.iter().zip(first).zip(asked()) {
        let (reads, writes) = planned(load);
        let since = (then.0 - first.0, then.1 - first.1);
        assert_eq!(since, (reads.len() as i64, writes.len() as i64), "{load}");
    }
    phases.push(watching.mark());

    let plug = folder.file("plug.xml");
    fs::write(&plug, disk(&images[2], "raw", "native", "vdb")).unwrap();
    session
        .virsh(&["attach-device", "shop", &plug, "--live"])
        .unwrap();
    disks.wait(
        1,
        &[("vm", "shop"), ("vdisk", "/dev/vdb"), ("image", &images[2])],
    );
    // The guest's kernel scans the disk for partitions before it creates the device.
    port.run("until test -b /dev/vdb; do sleep 0.1; done")
        .unwrap();
    let probe = load("/dev/vdb", 11);
    phases.push(known(&mut watching, &mut port, "shop", &[probe]));
    let plugged = load("/dev/vdb", 3);
    port.load(std::slice::from_ref(&plugged)).unwrap();
    phases.push(watching.mark());

    // More requests than can complete before the domain is destroyed.
    let endless = DiskLoad {
        count: 10_000_000,
        depth: 4,
        ..load("/dev/vda", 4)
    };
    port.begin_load(&[endless]).unwrap();
    thread::sleep(Duration::from_millis(700));
    session.virsh(&["destroy", "shop"]).unwrap();
    vms.wait(-1, &[("vm", "shop"), ("origin", "libvirt")]);
    disks.wait(
        -1,
        &[("vm", "shop"), ("vdisk", "/dev/vda"), ("image", &images[0])],
    );
    phases.push(watching.mark());

    session.virsh(&["domrename", "shop", "store"]).unwrap();
    let mut port = session.boot("store", &socket).unwrap();
    vms.wait(1, &[("vm", "store"), ("origin", "libvirt")]);
    disks.wait(
        1,
        &[
            ("vm", "store"),
            ("vdisk", "/dev/sda"),
            ("image", &images[1]),
        ],
    );
    let probes = [load("/dev/vda", 7), load("/dev/sda", 8)];
    phases.push(known(&mut watching, &mut port, "store", &probes));
    let again = [load("/dev/vda", 5), load("/dev/sda", 6)];
    port.load(&again).unwrap();
    phases.push(watching.mark());
    run("sync", &["-f", mounted]).unwrap();
    watching.mark();
    let after = counts(device);
    let mut delivered = watching.stop();

    delivered.rows.retain(|row| row.ts > phases[0]);
    adds_up(&delivered, device, after.since(&before));
    let mut places = Places::default();
    for (number, image) in images.iter().enumerate() {
        places.add(device, number, extents(Path::new(image)));
    }
    let phase = |number: usize| -> Vec<Seen> {
        let rows = delivered.rows.iter();
        let within = rows.filter(|r| r.ts > phases[number] && r.ts <= phases[number + 1]);
        within.cloned().collect()
    };
    let missed = delivered.missed(device);
    let expect = |number: usize, image: usize, vm: &str, load: &DiskLoad| {
        is_reported(&phase(number), &places, image, vm, load, missed);
    };
    expect(0, 0, "shop", &loads[0]);
    expect(0, 1, "shop", &loads[1]);
    expect(2, 2, "shop", &plugged);
    expect(5, 0, "store", &again[0]);
    expect(5, 1, "store", &again[1]);
    let under_load = phase(3);
    let own = places.rows(&under_load, 0);
    assert!(own.len() > 100, "{} requests until the end", own.len());
    for (row, sector) in own {
        let whose = (row.vm.as_deref(), row.vdisk.as_deref(), row.vsector);
        assert_eq!(
            whose,
            (Some("shop"), Some("/dev/vda"), Some(sector)),
            "{row:?}"
        );
    }
}

/// Loads these disks until each request has its disk: the tap's own scan may be later than that of
/// the relations. Returns the time at which each request has its disk.
pub fn known(watching: &mut Watching, port: &mut Port, vm: &str, loads: &[DiskLoad]) -> String {
    for attempt in 0.. {
        let since = watching.mark();
        port.load(loads).unwrap();
        let now = watching.mark();
        let rows = watching.rows();
        let own = |row: &&Seen| row.ts > since && row.vm.as_deref() == Some(vm);
        let unknown = rows.iter().filter(own).find(|row| row.vdisk.is_none());
        if unknown.is_none() && rows.iter().any(|row| own(&row)) {
            return now;
        }
        assert!(attempt < 20, "a disk stays unknown: {unknown:?}");
        thread::sleep(Duration::from_millis(200));
    }
    unreachable!("the assertion ends the loop")
}

/// An image with content, writable by libvirt's user.
fn image(folder: &MemoryFolder, mounted: &str, name: &str, format: &str) -> String {
    let (raw, path) = (folder.file("content"), format!("{mounted}/{name}"));
    fs::write(&raw, vec![0x11; (DISK << 20) as usize]).unwrap();
    run(
        "qemu-img",
        &["convert", "-f", "raw", "-O", format, &raw, &path],
    )
    .unwrap();
    fs::remove_file(raw).unwrap();
    chown(&path, Some(USER), Some(USER)).unwrap();
    path
}

/// Defines domain `shop` with the first two images.
fn define(session: &Session, folder: &MemoryFolder, kit: &Kit, images: &[String]) {
    // The build directory may not be accessible to other users.
    let (kernel, initramfs) = (folder.file("kernel"), folder.file("initramfs"));
    fs::copy(kit.kernel(), &kernel).unwrap();
    fs::copy(kit.initramfs(), &initramfs).unwrap();
    let disks =
        disk(&images[0], "raw", "io_uring", "vda") + &disk(&images[1], "qcow2", "threads", "sda");
    let description = domain(&kernel, &initramfs, &folder.file("port"), &disks);
    let file = folder.file("domain.xml");
    fs::write(&file, description).unwrap();
    session.virsh(&["define", &file]).unwrap();
}

/// A load on a disk, different for each seed.
pub fn load(disk: &str, seed: u64) -> DiskLoad {
    DiskLoad {
        read: 60,
        write: 40,
        count: 200 + 10 * seed,
        depth: 2,
        seed,
        span: DISK << 20,
        ..DiskLoad::on(disk)
    }
}

/// Asserts that the requests of an image among `rows` are those of the load, all by that VM and
/// disk.
pub fn is_reported(
    rows: &[Seen],
    places: &Places,
    image: usize,
    vm: &str,
    load: &DiskLoad,
    missed: i64,
) {
    let own = places.rows(rows, image);
    let (reads, writes) = planned(load);
    for (op, plan) in [("r", reads), ("w", writes)] {
        let of_op: Vec<&(&Seen, u64)> = own.iter().filter(|(row, _)| row.op == op).collect();
        // All clusters of the qcow2 image are allocated and its tables are in memory, so requests
        // match one to one.
        let asked = plan.len() as i64;
        let reported = of_op.len() as i64;
        assert!(
            (asked - missed..=asked + places.pieces(image) - 1).contains(&reported),
            "{op}: {reported} of {load}"
        );
        for (row, within) in of_op {
            let whose = (row.vm.as_deref(), row.vdisk.as_deref());
            assert_eq!(whose, (Some(vm), Some(load.disk.as_str())), "{row:?}");
            if let Some(sector) = row.vsector {
                assert!(sectors(&plan).contains(&sector), "{row:?} of {load}");
            }
            // The sectors of a raw image are those of the disk.
            assert!(
                image == 1 || row.vsector == Some(*within),
                "{row:?} at {within}"
            );
        }
    }
}
