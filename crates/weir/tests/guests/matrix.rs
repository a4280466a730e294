//! Each kind of storage, of asynchronous I/O and of device, in three guests at once: each request
//! is attributed to the right VM, disk and sector, and the sums are those of the guests, of QEMU
//! and of the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use weir_testing::plan::LoadRequest;
use weir_testing::{Counts, DiskLoad, Done, Guest, Kit, run};

use crate::host::{counts, extents};
use crate::kit;
use crate::places::{Places, adds_up, is_by_host, planned, sectors};
use crate::test_devices::{Cell, DISK, Store, TestDevices, VMS};
use crate::watching::{Delivered, Seen, Watching};

/// The counts of a disk outside weir.
struct Truth {
    done: Done,
    guest: Counts,
    qemu: BTreeMap<&'static str, i64>,
}

#[test]
fn each_request_belongs_to_its_vm_and_disk() {
    let Some((kit, _turn)) = kit("each_request_belongs_to_its_vm_and_disk") else {
        return;
    };
    let mut test_devices = TestDevices::new();
    let mut cells = test_devices.cells();
    // Dirty pages stay in the page cache even when it is dropped.
    test_devices.settle();
    let mut guests = boot(&kit, &cells);
    for cell in &mut cells {
        let names = serials(&mut guests[cell.vm]);
        cell.load.disk = format!("/dev/{}", names[cell.disk.id()]);
        // Linux probes SCSI disks in parallel, so their letters in the guest may be swapped. weir
        // names them in the order of QEMU's command line.
        if cell.vdisk.starts_with("/dev/vd") {
            assert_eq!(cell.load.disk, cell.vdisk, "{:?}", cell.disk);
        }
    }
    let mut watching = Watching::start(&test_devices.folder.file("seen"), &test_devices.devices());
    test_devices.settle();
    let since = watching.mark();
    for cell in cells.iter().filter(|cell| cell.store == Store::Buffered) {
        // A page that is already in the page cache is not read from the disk.
        let of = format!("of={}", cell.path);
        run("dd", &[&of, "oflag=nocache", "conv=notrunc", "count=0"]).unwrap();
    }
    let before = test_devices.devices().map(counts);
    let truths = work(&mut guests, &cells);
    let discarded = discard(&mut guests[0]);
    test_devices.settle();
    // A process other than the VM reads an image and a device; these reads are not attributed to
    // the VM.
    for path in [&cells[2].path, test_devices.whole.path()] {
        let from = format!("if={path}");
        run(
            "dd",
            &[&from, "of=/dev/null", "bs=64k", "count=16", "iflag=direct"],
        )
        .unwrap();
    }
    watching.mark();
    let after = test_devices.devices().map(counts);
    let mut delivered = watching.stop();
    delivered.rows.retain(|row| row.ts > since);
    // QEMU keeps tables of a qcow2 image in memory until it ends.
    for guest in guests {
        guest.quit().unwrap();
    }

    for (device, (after, before)) in test_devices.devices().iter().zip(after.iter().zip(&before)) {
        adds_up(&delivered, device, after.since(before));
    }
    let places = places(&test_devices, &cells);
    for (cell, truth) in cells.iter().zip(&truths) {
        agree(cell, truth);
        is_reported(cell, &delivered, &places);
    }
    for row in delivered.rows.iter().filter(|row| row.op != "f") {
        is_whose(row, &places, &cells);
    }
    flushes(&delivered, &test_devices, &cells, &truths);
    discard_is_reported(&delivered, &test_devices, &discarded);
}

/// Discards a part of the guest's first disk; returns the counts of its kernel for the discard.
fn discard(guest: &mut Guest) -> Counts {
    let before = guest.disk_stats().unwrap()["vda"];
    let (first, count) = (DISCARDED.0 * 512, DISCARDED.1 * 512);
    guest
        .run(&format!("blkdiscard -o {first} -l {count} /dev/vda"))
        .unwrap();
    guest.disk_stats().unwrap()["vda"].since(&before)
}

fn boot(kit: &Kit, cells: &[Cell]) -> Vec<Guest> {
    let start = |(vm, name): (usize, &&str)| {
        let own = cells.iter().filter(|cell| cell.vm == vm);
        let args: Vec<String> = own.flat_map(|cell| cell.disk.args()).collect();
        Guest::start(kit, name, &args).unwrap()
    };
    let mut guests: Vec<Guest> = VMS.iter().enumerate().map(start).collect();
    for guest in &mut guests {
        guest.ready().unwrap();
    }
    guests
}

/// The guest's names of its disks by their serial numbers, which are the ids in QEMU.
fn serials(guest: &mut Guest) -> BTreeMap<String, String> {
    let script = "for d in /sys/block/[sv]d*; do \
                  s=$(cat $d/serial 2>/dev/null || tail -c +5 $d/device/vpd_pg80); \
                  echo ${d##*/} $s; done";
    let stdout = guest.run(script).unwrap();
    let pairs = stdout.lines().filter_map(|line| line.split_once(' '));
    pairs
        .map(|(name, id)| (id.to_owned(), name.to_owned()))
        .collect()
}

/// Runs all loads at once; returns the completed I/O, by three counts.
fn work(guests: &mut [Guest], cells: &[Cell]) -> Vec<Truth> {
    let of = |vm: usize| cells.iter().filter(move |cell| cell.vm == vm);
    let before: Vec<_> = guests
        .iter_mut()
        .map(|g| (g.disk_stats().unwrap(), stats(g)))
        .collect();
    let loads = |vm| of(vm).map(|c| c.load.clone()).collect::<Vec<DiskLoad>>();
    for (vm, guest) in guests.iter_mut().enumerate() {
        guest.begin_load(&loads(vm)).unwrap();
    }
    let mut truths = Vec::new();
    for (vm, guest) in guests.iter_mut().enumerate() {
        let done = guest.finish_load(&loads(vm)).unwrap();
        let after = (guest.disk_stats().unwrap(), stats(guest));
        for (cell, done) in of(vm).zip(done) {
            let (name, id) = (cell.load.disk.trim_start_matches("/dev/"), cell.disk.id());
            let since = |field: &&'static str| {
                let count = |all: &BTreeMap<String, Value>| all[id][field].as_i64().unwrap();
                (*field, count(&after.1) - count(&before[vm].1))
            };
            truths.push(Truth {
                done,
                guest: after.0[name].since(&before[vm].0[name]),
                qemu: FIELDS.iter().map(since).collect(),
            });
        }
    }
    truths
}

/// The fields of `query-blockstats` that are compared.
const FIELDS: &[&str] = &[
    "rd_operations",
    "rd_bytes",
    "wr_operations",
    "wr_bytes",
    "flush_operations",
];

/// QEMU's block statistics by the device's id.
fn stats(guest: &Guest) -> BTreeMap<String, Value> {
    let all = guest
        .qmp()
        .unwrap()
        .call("query-blockstats", json!({}))
        .unwrap();
    let entries = all.as_array().unwrap().iter().filter_map(|entry| {
        // `d0`, or `/machine/peripheral/d0/virtio-backend`.
        let qdev = entry["qdev"].as_str()?.trim_end_matches("/virtio-backend");
        let id = qdev.rsplit('/').next()?.to_owned();
        Some((id, entry["stats"].clone()))
    });
    entries.collect()
}

/// Asserts that the plan, the program, the guest's kernel and QEMU count the same: no other I/O, no
/// merges.
fn agree(cell: &Cell, truth: &Truth) {
    let what = format!(
        "{:?} {}: {truth:?}",
        cell.store,
        cell.load,
        truth = truth.guest
    );
    let (reads, writes) = planned(&cell.load);
    let (reads, writes) = (reads.len() as i64, writes.len() as i64);
    let bytes = cell.load.bytes as i64;
    let done = &truth.done;
    assert_eq!((done.reads, done.writes), (reads, writes), "{what}");
    assert_eq!(done.fsyncs, cell.load.fsyncs() as i64, "{what}");
    let guest = &truth.guest;
    assert_eq!(
        (guest.reads, guest.read_sectors),
        (reads, reads * bytes / 512),
        "{what}"
    );
    // Linux counts a flush without data as a write without sectors.
    assert_eq!(guest.writes, writes + guest.flushes, "{what}");
    assert_eq!(guest.write_sectors, writes * bytes / 512, "{what}");
    let qemu = [reads, reads * bytes, writes, writes * bytes, guest.flushes];
    let by_qemu: Vec<i64> = FIELDS.iter().map(|field| truth.qemu[field]).collect();
    assert_eq!(by_qemu, qemu, "{what}");
}

/// The locations of the disks on the host.
fn places(test_devices: &TestDevices, cells: &[Cell]) -> Places {
    let mut places = Places::default();
    for (number, cell) in cells.iter().enumerate() {
        let (device, extents) = match cell.store {
            Store::Device => (test_devices.whole.path(), vec![(0, 0, DISK << 11)]),
            Store::Partition => {
                let name = cell.path.trim_start_matches("/dev/");
                let file = format!("/sys/class/block/{name}/start");
                let start = fs::read_to_string(file).unwrap().trim().parse().unwrap();
                (test_devices.parted.path(), vec![(0, start, DISK << 11)])
            }
            _ => (test_devices.imaged.path(), extents(Path::new(&cell.path))),
        };
        places.add(device, number, extents);
    }
    places
}

/// Asserts that the VM, the disk and the sector of a request are right.
fn is_whose(row: &Seen, places: &Places, cells: &[Cell]) {
    if is_by_host(row) {
        assert_eq!(
            (&row.vm, &row.vdisk, row.vsector),
            (&None, &None, None),
            "{row:?}"
        );
        return;
    }
    let Some((number, within)) = places.find(row) else {
        // I/O of the file system itself: whichever process waits for it, it is on no disk of a VM.
        assert_eq!((&row.vdisk, row.vsector), (&None, None), "{row:?}");
        return;
    };
    let cell = &cells[number];
    let what = format!("{row:?} of {:?} {:?}", cell.store, cell.disk);
    // The extent of an image that grows may have been allocated a moment ago.
    if cell.store != Store::Growing || row.vdisk.is_some() {
        assert_eq!(row.vdisk.as_ref(), Some(&cell.vdisk), "{what}");
    }
    assert_eq!(row.vm.as_deref(), Some(VMS[cell.vm]), "{what}");
    match cell.store {
        Store::Qcow2 | Store::Growing => {}
        _ => assert_eq!(row.vsector, Some(within), "{what}"),
    }
}

/// Asserts that all requests of a disk are reported, and that additional requests have a known
/// cause.
fn is_reported(cell: &Cell, delivered: &Delivered, places: &Places) {
    let number = cell.disk.id()[1..].parse().unwrap();
    let own = places.rows(&delivered.rows, number);
    let others = places.read_by_host(&delivered.rows, number);
    let missed = delivered.missed(own[0].0.device());
    let (reads, writes) = planned(&cell.load);
    for (op, plan) in [("r", reads), ("w", writes)] {
        let mut wanted = match cell.store {
            Store::Qcow2 | Store::Growing => mapped(&cell.path, &plan),
            _ => sectors(&plan),
        };
        if cell.store == Store::Buffered && op == "r" {
            // The page cache contains what other processes have read.
            wanted.retain(|sector| !others.contains(sector));
        }
        let rows = own.iter().filter(|(row, _)| row.op == op);
        let touched: Vec<BTreeSet<u64>> = rows
            .map(|(r, at)| (*at..at + r.sectors).collect())
            .collect();
        let all: BTreeSet<u64> = touched.iter().flatten().copied().collect();
        let on_data = touched.iter().filter(|t| !t.is_disjoint(&wanted)).count() as i64;
        let (asked, others) = (plan.len() as i64, touched.len() as i64 - on_data);
        let (lacking, beyond) = (
            wanted.difference(&all).count(),
            all.difference(&wanted).count(),
        );
        let what = format!(
            "{op}: {asked} asked, {on_data} told, {others} others, {lacking} sectors lack, \
             {beyond} beyond; {:?} {}; {}",
            cell.store, cell.load, delivered.summary
        );
        let sectors_missed_max = missed as usize * SECTORS_MAX;
        assert!(lacking <= sectors_missed_max, "{what}");
        match cell.store {
            Store::Device | Store::Partition => {
                assert!((asked - missed..=asked).contains(&on_data), "{what}");
                assert_eq!((others, beyond), (0, 0), "{what}");
            }
            // A request across two extents of the file is two requests on the device.
            Store::Raw => {
                let most = asked + places.pieces(number) - 1;
                assert!((asked - missed..=most).contains(&on_data), "{what}");
                assert_eq!((others, beyond), (0, 0), "{what}");
            }
            // The page cache reads ahead, and may merge or split writes.
            Store::Buffered if op == "r" => {}
            Store::Buffered => assert_eq!(beyond, 0, "{what}"),
            // The first write to a cluster fills the whole cluster, and the tables of clusters are
            // read and written in addition to the data.
            Store::Qcow2 | Store::Growing => {
                let most = asked + places.pieces(number) - 1;
                assert!((asked - missed..=most).contains(&on_data), "{what}");
                assert!(others <= METADATA_MAX, "{what}");
                assert!(
                    beyond == 0 || others > 0 || cell.store == Store::Growing,
                    "{what}"
                );
            }
        }
    }
}

/// The longest request that a loop device accepts, in sectors.
const SECTORS_MAX: usize = 2560;

/// A qcow2 image with this few clusters has one table of each kind; each is written a few times.
const METADATA_MAX: i64 = 12;

/// Asserts that discards reach a device as the guest issued them.
fn discard_is_reported(delivered: &Delivered, test_devices: &TestDevices, guest: &Counts) {
    assert_eq!(
        (guest.discards, guest.discard_sectors),
        (1, DISCARDED.1),
        "{guest:?}"
    );
    let rows = delivered.rows.iter().filter(|row| row.op == "d");
    let rows: Vec<&Seen> = rows.collect();
    let whole = |row: &&Seen| {
        row.device() == test_devices.whole.path() && row.vm.as_deref() == Some(VMS[0])
    };
    assert!(rows.iter().all(whole), "{rows:?}");
    let sum: u64 = rows.iter().map(|row| row.sectors).sum();
    let missed = delivered.missed(test_devices.whole.path());
    assert!(
        sum as i64 == DISCARDED.1 || missed > 0,
        "{rows:?} {}",
        delivered.summary
    );
}

/// The first sector and the number of sectors of the first disk that are discarded at the end.
const DISCARDED: (i64, i64) = (4096, 2048);

/// Sectors of a qcow2 image's file that contain the data of these requests, from `qemu-img map`.
fn mapped(image: &str, plan: &[LoadRequest]) -> BTreeSet<u64> {
    let args = ["map", "-f", "qcow2", "--output=json", image];
    let output = Command::new("qemu-img").args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let map: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mut sectors = BTreeSet::new();
    for request in plan {
        let (first, end) = (
            request.sector * 512,
            (request.sector + request.sectors) * 512,
        );
        for piece in map.iter().filter(|piece| piece["data"] == true) {
            let n = |field: &str| piece[field].as_u64().unwrap();
            let (from, to) = (first.max(n("start")), end.min(n("start") + n("length")));
            let within = |at: u64| (at - n("start") + n("offset")) / 512;
            if from < to {
                sectors.extend(within(from)..within(to));
            }
        }
    }
    sectors
}

/// Asserts that flushes reach the device as the guests issued them; concurrent flushes may share
/// one.
fn flushes(delivered: &Delivered, test_devices: &TestDevices, cells: &[Cell], truths: &[Truth]) {
    for (store, device) in [
        (Store::Device, test_devices.whole.path()),
        (Store::Partition, test_devices.parted.path()),
    ] {
        let rows = delivered
            .rows
            .iter()
            .filter(|r| r.op == "f" && r.device() == device);
        let seen = rows.count() as i64;
        let own = cells
            .iter()
            .zip(truths)
            .filter(|(cell, _)| cell.store == store);
        let sent: i64 = own.map(|(_, truth)| truth.qemu["flush_operations"]).sum();
        let missed = delivered.missed(device);
        assert!(
            seen <= sent && sent > 0,
            "{device}: {seen} flushes of {sent}"
        );
        if store == Store::Device {
            assert!(sent - seen <= missed, "{device}: {seen} flushes of {sent}");
        }
    }
    let own = |row: &&Seen| row.op == "f" && !is_by_host(row) && row.vm.is_some();
    for row in delivered.rows.iter().filter(own) {
        let vm = row.vm.as_deref().unwrap();
        let right = |cell: &&Cell| VMS[cell.vm] == vm && Some(&cell.vdisk) == row.vdisk.as_ref();
        assert!(VMS.contains(&vm), "{row:?}");
        assert!(
            row.vdisk.is_none() || cells.iter().any(|c| right(&c)),
            "{row:?}"
        );
    }
}
