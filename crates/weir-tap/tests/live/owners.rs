//! Attribution of requests: images in files, stacked devices, writeback, other processes, growth.
//! Every sector of an image contains its own number, so that the rows are compared with the
//! device's content.

use std::fs;

use weir_model::Value;
use weir_tap::inventory::Image;

use crate::images::{
    Fake, copy_direct, fio_as, forget_cached, forget_cached_file, prepared, raw, stamp_at,
    with_inventory, write_lazily, write_stamped,
};
use crate::load::DiskStats;
use crate::watch::{Rows, Seen, Watch, demand};
use crate::{Bench, bench, skip};
use weir_testing::{LoopDisk, run};

const COLUMNS: &str = "op sector sectors vm vdisk vsector pid comm pdisk host";

fn vm(name: &'static str, vdisk: &'static str, image: &Image) -> Fake {
    Fake {
        name,
        disks: vec![(vdisk, vec![image.clone()])],
    }
}

/// Runs `load` while a tap reads events.
fn seen(bench: &Bench, vms: Vec<Fake>, load: impl FnOnce()) -> (Seen, DiskStats) {
    let options = with_inventory(&[bench.disk.path()], vms);
    let watch = Watch::start(vec![demand("IO", COLUMNS, Vec::new())], &options);
    let before = DiskStats::of(&bench.disk);
    load();
    run("sync", &[]).unwrap();
    let kernel = DiskStats::of(&bench.disk).since(before);
    (watch.stop(), kernel)
}

/// The sum over VMs and over requests of no VM is the kernel's count on the device.
fn sums_up(seen: &Seen, kernel: DiskStats) {
    let rows = seen.all();
    let per_vm: usize = rows
        .texts("vm")
        .iter()
        .map(|vm| of_vm(rows, vm).len())
        .sum();
    let unseen = seen.count("unseen", None, None);
    assert_eq!(
        per_vm as i64 + unseen,
        kernel.requests(),
        "{:?}",
        seen.counts
    );
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(rows.texts("host"), [host.trim_end()]);
}

/// Rows of a VM; `NULL` for those of none.
fn of_vm(rows: &Rows, vm: &str) -> Rows {
    rows.filter("vm", |value| match vm {
        "NULL" => *value == Value::Null,
        name => *value == Value::text(name),
    })
}

/// Compares every row with a sector of the VM with the content of that sector; returns their
/// number.
fn holds_against_content(rows: &Rows, device: &str, stamp: u64) -> usize {
    forget_cached(device);
    let sectors = rows
        .column("sector")
        .into_iter()
        .zip(rows.column("vsector"));
    let mut held = 0;
    for (sector, vsector) in sectors {
        if let (Value::Int(sector), Value::Int(vsector)) = (sector, vsector) {
            assert_eq!(
                stamp_at(device, sector),
                (stamp, vsector as u64),
                "sector {sector}"
            );
            held += 1;
        }
    }
    held
}

const DIRECT: &[&str] = &[
    "--direct=1 --ioengine=libaio --iodepth=8 --rw=randread --bs=4k --io_size=4m --size=16m",
    "--direct=1 --ioengine=io_uring --iodepth=8 --rw=randread --bs=8k --io_size=4m --size=16m",
    "--direct=1 --ioengine=psync --numjobs=2 --rw=randread --bs=4k --io_size=2m --size=16m",
    "--direct=1 --ioengine=io_uring --sqthread_poll=1 --rw=randread --bs=4k --io_size=1m --size=16m",
];

#[test]
fn images_in_files_are_distinguished_by_sector() {
    const TEST: &str = "images_in_files_are_distinguished_by_sector";
    let Some((bench, images)) = prepared(TEST, 96) else {
        return;
    };
    // Written alternately, so that their extents are interleaved.
    for part in 0..16 {
        write_stamped(&images.path("a.raw"), part << 20, 1 << 20, 1);
        write_stamped(&images.path("b.raw"), part << 20, 1 << 20, 2);
    }
    let (a, b) = (raw(images.path("a.raw")), raw(images.path("b.raw")));
    for load in DIRECT {
        let vms = vec![vm("vm-a", "/dev/vda", &a), vm("vm-b", "/dev/sdb", &b)];
        let (seen, kernel) = seen(&bench, vms, || {
            fio_as("vm-a", &a.path, load);
            fio_as("vm-b", &b.path, load);
            copy_direct(&a.path);
        });
        sums_up(&seen, kernel);
        let reads = seen.all().with("op", "r");
        for (name, vdisk, stamp) in [("vm-a", "/dev/vda", 1), ("vm-b", "/dev/sdb", 2)] {
            let own = of_vm(&reads, name);
            assert!(own.len() > 100, "{load}: {name}: {} reads", own.len());
            assert_eq!(own.texts("vdisk"), [vdisk], "{load}");
            assert_eq!(
                holds_against_content(&own, bench.disk.path(), stamp),
                own.len()
            );
        }
        // A process that reads an image without being its VM is not attributed to the VM.
        let strangers = reads.with("comm", "dd");
        assert!(
            strangers.len() >= 256,
            "{load}: {} reads by dd",
            strangers.len()
        );
        assert_eq!(strangers.texts("vm"), ["NULL"]);
        assert_eq!(strangers.texts("vdisk"), ["NULL"]);
    }
}

#[test]
fn writeback_belongs_to_the_image_and_the_journal_to_no_vm() {
    const TEST: &str = "writeback_belongs_to_the_image_and_the_journal_to_no_vm";
    let Some((bench, images)) = prepared(TEST, 64) else {
        return;
    };
    let a = images.raw("a.raw", 8, 1);
    let (seen, kernel) = seen(&bench, vec![vm("vm-a", "/dev/vda", &a)], || {
        // The same content is written again: the location does not change.
        let content = fs::read(&a.path).unwrap();
        write_lazily(&a.path, 0, &content);
        fs::write(images.path("other"), vec![0; 1 << 20]).unwrap();
    });
    sums_up(&seen, kernel);
    let writes = seen.all().with("op", "w");
    let own = of_vm(&writes, "vm-a");
    assert_eq!(own.sum("sectors"), (8 << 20) / 512, "all of the image");
    assert_eq!(own.texts("vdisk"), ["/dev/vda"]);
    assert_eq!(holds_against_content(&own, bench.disk.path(), 1), own.len());
    let rest = of_vm(&writes, "NULL");
    assert!(
        rest.sum("sectors") >= (1 << 20) / 512,
        "the other file and the journal"
    );
    assert_eq!(rest.texts("vdisk"), ["NULL"]);
}

#[test]
fn an_image_that_grows_is_found_where_it_has_grown() {
    const TEST: &str = "an_image_that_grows_is_found_where_it_has_grown";
    let Some((bench, images)) = prepared(TEST, 64) else {
        return;
    };
    let path = images.path("thin.raw");
    fs::File::create(&path).unwrap().set_len(32 << 20).unwrap();
    let load = "--direct=1 --ioengine=psync --rw=write --bs=64k --size=8m --zero_buffers";
    let (seen, kernel) = seen(&bench, vec![vm("vm-a", "/dev/vda", &raw(&path))], || {
        fio_as("vm-a", &path, load);
    });
    sums_up(&seen, kernel);
    let own = of_vm(&seen.all().with("op", "w"), "vm-a");
    let data = own.with("comm", "fio");
    assert!(
        data.sum("sectors") >= (8 << 20) / 512,
        "{}",
        data.sum("sectors")
    );
    let known = data.with("vdisk", "/dev/vda");
    assert!(
        known.len() * 2 > data.len(),
        "{} of {} are known",
        known.len(),
        data.len()
    );
    // Stamped in place afterwards, each sector shows whether it was attributed correctly.
    write_stamped(&path, 0, 8 << 20, 7);
    assert_eq!(
        holds_against_content(&known, bench.disk.path(), 7),
        known.len()
    );
}

#[test]
fn a_loop_device_is_the_vms_and_so_is_what_its_worker_does_below() {
    const TEST: &str = "a_loop_device_is_the_vms_and_so_is_what_its_worker_does_below";
    let Some((bench, images)) = prepared(TEST, 96) else {
        return;
    };
    let a = images.raw("a.raw", 24, 1);
    let skipped = 1 << 20;
    for options in [&["--direct-io=on"][..], &["--direct-io=off"]] {
        let offset = skipped.to_string();
        let mut all = vec!["-o", &offset];
        all.extend(options);
        let upper = match LoopDisk::on(&a.path, &all) {
            Ok(upper) => upper,
            Err(why) => {
                skip::<()>(TEST, &why);
                return;
            }
        };
        let vms = vec![vm("vm-a", "/dev/vda", &raw(upper.path()))];
        forget_cached_file(&a.path);
        let options = with_inventory(&[bench.disk.path(), upper.path()], vms);
        let watch = Watch::start(vec![demand("IO", COLUMNS, Vec::new())], &options);
        let load = "--direct=1 --ioengine=libaio --iodepth=4 --rw=randread --bs=4k --io_size=4m --size=16m";
        fio_as("vm-a", upper.path().as_ref(), load);
        let seen = watch.stop();
        let reads = seen.all().with("op", "r");
        let above = reads.with("pdisk", upper.path());
        let own = of_vm(&above, "vm-a");
        assert!(own.len() >= 512, "{} reads above", own.len());
        assert_eq!(own.texts("vdisk"), ["/dev/vda"]);
        assert_eq!(
            own.ints("sector"),
            own.ints("vsector"),
            "the device is the disk"
        );
        let below = of_vm(&reads.with("pdisk", bench.disk.path()), "vm-a");
        let all = reads.with("pdisk", bench.disk.path());
        assert!(
            below.len() > 10,
            "{} reads below, {:?} of {:?} {:?}",
            below.len(),
            all.texts("vm"),
            all.len(),
            all.texts("comm")
        );
        assert_eq!(below.texts("vdisk"), ["/dev/vda"]);
        // The image begins after the offset of the loop device.
        for (sector, vsector) in below.ints("sector").iter().zip(below.ints("vsector")) {
            let (stamp, of_image) = stamp_at(bench.disk.path(), *sector);
            assert_eq!((stamp, of_image), (1, vsector as u64 + skipped / 512));
        }
    }
}

#[test]
fn a_shared_image_is_attributed_by_the_process() {
    const TEST: &str = "a_shared_image_is_attributed_by_the_process";
    let Some((bench, images)) = prepared(TEST, 64) else {
        return;
    };
    let base = images.raw("base.raw", 8, 1);
    let overlay = |name: &str| Image {
        raw: false,
        ..images.raw(name, 1, 9)
    };
    let disks = |name, active: &Image| Fake {
        name,
        disks: vec![("/dev/vda", vec![active.clone(), base.clone()])],
    };
    let (a, b) = (overlay("a.qcow2"), overlay("b.qcow2"));
    let load = "--direct=1 --ioengine=psync --rw=randread --bs=4k --io_size=1m --size=8m";
    let (seen, kernel) = seen(&bench, vec![disks("vm-a", &a), disks("vm-b", &b)], || {
        fio_as("vm-a", &base.path, load);
        fio_as("vm-b", &base.path, load);
        fio_as("vm-b", &b.path, &load.replace("--size=8m", "--size=1m"));
        let content = fs::read(&base.path).unwrap();
        write_lazily(&base.path, 0, &content);
    });
    sums_up(&seen, kernel);
    for name in ["vm-a", "vm-b"] {
        let reads = of_vm(&seen.all().with("op", "r"), name);
        assert!(reads.len() >= 256, "{name}: {} reads", reads.len());
        assert_eq!(reads.texts("vdisk"), ["/dev/vda"]);
    }
    // For a format with metadata of its own the disk is known, but no sector.
    let in_overlay =
        of_vm(&seen.all().with("op", "r"), "vm-b").filter("vsector", |v| *v == Value::Null);
    assert!(
        in_overlay.len() >= 256,
        "{} in the overlay",
        in_overlay.len()
    );
    // The owner of a page that a kernel thread writes back is unknown.
    let writes = seen.all().with("op", "w");
    let data = writes.filter("sectors", |s| matches!(s, Value::Int(n) if *n >= 64));
    assert!(writes.sum("sectors") >= (8 << 20) / 512);
    assert_eq!(data.texts("vm"), ["NULL"]);
}

#[test]
fn blocks_that_an_image_gives_up_are_not_its_own_any_more() {
    const TEST: &str = "blocks_that_an_image_gives_up_are_not_its_own_any_more";
    let Some((bench, images)) = prepared(TEST, 32) else {
        return;
    };
    let a = images.raw("a.raw", 20, 1);
    let vms = vec![vm("vm-a", "/dev/vda", &a)];
    let options = with_inventory(&[bench.disk.path()], vms);
    // Most of the file system is freed and allocated again, to a file of no VM.
    let path = a.path.to_string_lossy().into_owned();
    run(
        "fallocate",
        &["--punch-hole", "-o", "0", "-l", "18874368", &path],
    )
    .unwrap();
    run("sync", &[]).unwrap();
    let watch = options.inventory.as_ref().unwrap();
    watch.look(
        weir_tap::inventory::ScanScope::Device(0),
        std::time::Duration::from_secs(10),
    );
    let tap = Watch::start(vec![demand("IO", COLUMNS, Vec::new())], &options);
    fs::write(images.path("other"), vec![1; 16 << 20]).unwrap();
    run("sync", &[]).unwrap();
    let seen = tap.stop();
    let writes = seen.all().with("op", "w");
    assert!(writes.sum("sectors") >= (16 << 20) / 512);
    assert_eq!(writes.texts("vm"), ["NULL"]);
    assert_eq!(writes.texts("vsector"), ["NULL"]);
}

#[test]
fn a_partition_is_a_disk_and_a_flush_is_its_vms() {
    const TEST: &str = "a_partition_is_a_disk_and_a_flush_is_its_vms";
    let Some(bench) = bench(TEST, 64) else {
        return;
    };
    // Two of 20 MiB, and the start of the second one.
    const SECOND: u64 = 43_008;
    let parted = |number, start| bench.disk.partition(number, start, 40_960);
    let second = match parted(1, 2048).and_then(|_| parted(2, SECOND)) {
        Ok(second) => second,
        Err(why) => {
            skip::<()>(TEST, why);
            return;
        }
    };
    let vms = vec![vm("vm-a", "/dev/nvme0n1", &raw(&second))];
    let load =
        "--direct=1 --ioengine=psync --rw=randwrite --bs=4k --io_size=1m --size=16m --fsync=16";
    let (seen, kernel) = seen(&bench, vms, || fio_as("vm-a", second.as_ref(), load));
    sums_up(&seen, kernel);
    let own = of_vm(seen.all(), "vm-a");
    let writes = own.with("op", "w");
    assert!(writes.len() >= 256);
    assert_eq!(own.texts("vdisk"), ["/dev/nvme0n1"]);
    for (sector, vsector) in writes.ints("sector").iter().zip(writes.ints("vsector")) {
        assert_eq!(sector - SECOND as i64, vsector);
    }
    let flushes = own.with("op", "f");
    assert!(flushes.len() > 8, "{} flushes", flushes.len());
    assert_eq!(flushes.texts("vsector"), ["NULL"]);
}
