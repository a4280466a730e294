//! Which images are served as raw: none in another format, and only files and devices; and their
//! size, to the byte.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use weir_model::Op;
use weir_tapdisk::disk::ImageFormat;
use weir_tapdisk::engine::{CacheOption, EngineOption};
use weir_tapdisk::{DiskError, DiskOptions, Outcome, Request, ServedDisk};

use crate::location::{Folder, io_queue, open};
use crate::support::{Memory, TIMEOUT, skipped};

/// Images of `qemu-img create`: format and options, and the name in the error.
const MADE: [(&str, &str, &str); 11] = [
    ("qcow2", "", "qcow or qcow2"),
    ("qcow2", "compat=0.10", "qcow or qcow2"),
    ("qcow", "", "qcow or qcow2"),
    ("qed", "", "qed"),
    ("vdi", "", "vdi"),
    ("vhdx", "", "vhdx"),
    ("vpc", "subformat=dynamic", "vhd (vpc)"),
    ("vpc", "subformat=fixed", "vhd (vpc)"),
    ("vmdk", "subformat=monolithicSparse", "vmdk"),
    ("vmdk", "subformat=twoGbMaxExtentFlat", "vmdk"),
    ("parallels", "", "parallels"),
];

fn refusal(path: &Path) -> String {
    let error = ServedDisk::open(DiskOptions::new(path)).expect_err("it is refused");
    assert!(matches!(error, DiskError::Unsuitable { .. }), "{error}");
    error.to_string()
}

fn serves_as_raw(path: &Path) -> Result<u64, DiskError> {
    let mut options = DiskOptions::new(path);
    options.format = ImageFormat::Raw;
    ServedDisk::open(options).map(|disk| disk.size_bytes())
}

#[test]
fn images_of_other_formats_are_rejected_unless_raw_is_forced() {
    let test = "images_of_other_formats_are_rejected_unless_raw_is_forced";
    let folder = Folder::new();
    for (number, (format, options, name)) in MADE.into_iter().enumerate() {
        let path = folder.path().join(format!("{number}.img"));
        let chosen = ["-o", options];
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", format])
            .args(&chosen[..if options.is_empty() { 0 } else { 2 }])
            .arg(&path)
            .arg("4M")
            .output();
        let made = match made {
            Ok(made) => made,
            Err(why) => return skipped(test, format!("qemu-img: {why}")),
        };
        let words = String::from_utf8_lossy(&made.stderr).into_owned();
        if words.contains("Unknown file format") || words.contains("not supported") {
            skipped(test, format!("{format}: {words}"));
            continue;
        }
        assert!(made.status.success(), "{format} {options}: {words}");
        let before = fs::read(&path).unwrap();
        let refused = refusal(&path);
        let part = format!("is an image in the format {name};");
        assert!(refused.contains(&part), "{format} {options}: {refused}");
        assert!(refused.contains("format `raw`"), "{refused}");
        assert_eq!(
            fs::read(&path).unwrap(),
            before,
            "{format}: it is as it was"
        );
        serves_as_raw(&path).unwrap();
    }
}

/// Signatures of formats that `qemu-img` only reads, and their positions: from the start, or before
/// the end.
const WRITTEN: [(&str, i64, &[u8]); 6] = [
    ("vmdk", 0, b"COWD"),
    ("vhd (vpc)", -511, b"conectix"),
    ("parallels", 0, b"WithoutFreeSpace"),
    ("bochs", 0, b"Bochs Virtual HD Image"),
    ("cloop", 0, b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop"),
    ("dmg", -512, b"koly"),
];

#[test]
fn formats_are_detected_by_signatures_in_their_position_only() {
    let folder = Folder::new();
    let path = folder.path().join("d.img");
    let bytes = 1 << 20;
    let put = |at: u64, signature: &[u8]| {
        let image = File::create(&path).unwrap();
        image.set_len(bytes).unwrap();
        image.write_all_at(signature, at).unwrap();
    };
    for (format, location, signature) in WRITTEN {
        let at = if location < 0 {
            bytes as i64 + location
        } else {
            location
        } as u64;
        put(at, signature);
        let refused = refusal(&path);
        assert!(refused.contains(&format!("format {format};")), "{refused}");
        assert_eq!(serves_as_raw(&path).unwrap(), bytes);
        // Elsewhere on a disk it is data.
        put(4096, signature);
        assert!(
            ServedDisk::open(DiskOptions::new(&path)).is_ok(),
            "{format}"
        );
        put(0, &signature[..3]);
        assert!(
            ServedDisk::open(DiskOptions::new(&path)).is_ok(),
            "{format}"
        );
    }
    // Data that a guest writes to the start of a raw disk: a partition table, LUKS, a file system.
    for begin in [
        &[0x55, 0xaa][..],
        b"LUKS\xba\xbe\0\x02",
        b"XFSB",
        b"QFI",
        b"# Disk",
    ] {
        put(0, begin);
        assert!(
            ServedDisk::open(DiskOptions::new(&path)).is_ok(),
            "{begin:?}"
        );
    }
}

#[test]
fn the_examined_file_is_the_opened_one() {
    let folder = Folder::new();
    let (image, fifo) = (folder.path().join("a"), folder.path().join("fifo"));
    fs::write(&image, vec![0; 1 << 16]).unwrap();
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let path = folder.path().join("disk.raw");
    let over = AtomicBool::new(false);
    let (ended, wait) = channel();
    thread::scope(|scope| {
        // The name refers to a file and to a FIFO in turn; opening the FIFO for reading would block
        // for ever.
        scope.spawn(|| {
            let beside = folder.path().join("new");
            while !over.load(Ordering::Relaxed) {
                for target in [&image, &fifo] {
                    std::os::unix::fs::symlink(target, &beside).unwrap();
                    fs::rename(&beside, &path).unwrap();
                }
            }
        });
        let opening = path.clone();
        // Not in the scope, which would wait for it.
        thread::spawn(move || {
            let mut options = DiskOptions::new(&opening);
            options.read_only = true;
            options.lock = false;
            for _ in 0..3000 {
                match ServedDisk::open(options.clone()) {
                    Ok(disk) => assert_eq!(disk.size_bytes(), 1 << 16),
                    // Also before the name exists.
                    Err(DiskError::Unsuitable { .. } | DiskError::Image { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            ended.send(()).unwrap();
        });
        let done = wait.recv_timeout(TIMEOUT);
        over.store(true, Ordering::Relaxed);
        done.expect("opening never waits");
    });
}

const MIB: u64 = 1 << 20;

/// Sizes, and the greatest power of two up to a block of 512 of which each is a multiple.
const SIZES: [(u64, u32); 8] = [
    (1, 1),
    (513, 1),
    (1000, 8),
    (4095, 1),
    (4097, 1),
    (MIB + 1, 1),
    (MIB + 512, 512),
    (MIB, 512),
];

#[test]
fn the_size_of_a_disk_is_that_of_its_image_to_the_byte() {
    let folder = Folder::new();
    for (size, step) in SIZES {
        let path = folder.image(size);
        for engine in [EngineOption::Uring, EngineOption::Sync] {
            let disk = open(&path, (engine, CacheOption::PageCache));
            assert_eq!((disk.size_bytes(), disk.step_bytes()), (size, step));
            assert_eq!(disk.check_blocks().is_ok(), size % 512 == 0, "{size}");
            let mut rig = io_queue(&disk);
            let mut step_at = |op, offset: u64, bytes: u64, memory| {
                let request = Request {
                    skip_bytes: (offset % 512) as u16,
                    ..Request::new(op, offset / 512, bytes)
                };
                rig.run(request, memory)
            };
            // The last step, and one beyond it.
            let (last, bytes) = (size - u64::from(step), u64::from(step));
            let data = vec![7; step as usize];
            let written = step_at(Op::Write, last, bytes, Memory::of(&data));
            assert_eq!(written.0, Outcome::Done, "{size}");
            let (outcome, read) = step_at(Op::Read, last, bytes, Memory::new(&[step as usize], 0));
            assert_eq!((outcome, read.data()), (Outcome::Done, data), "{size}");
            let beyond = Memory::of(&vec![8; 2 * step as usize]);
            let refused = step_at(Op::Write, last, 2 * bytes, beyond).0;
            assert_eq!(refused, Outcome::Failed(libc::EINVAL), "{size}");
            assert_eq!(fs::metadata(&path).unwrap().len(), size);
        }
    }
}

#[test]
fn an_image_that_ends_within_a_block_is_not_served_with_direct_io() {
    let folder = Folder::new();
    let direct = (EngineOption::Sync, CacheOption::Direct);
    for size in [513, 4097, MIB + 1] {
        let path = folder.image(size);
        let mut options = crate::location::options(&path, direct);
        let refused = ServedDisk::open(options.clone()).unwrap_err().to_string();
        assert!(refused.contains("is not a multiple of the"), "{refused}");
        options.cache = CacheOption::Auto;
        options.engine = EngineOption::Auto;
        let disk = ServedDisk::open(options).unwrap();
        assert_eq!((disk.choice().direct, disk.size_bytes()), (None, size));
        let refused = disk.check_blocks().unwrap_err().to_string();
        let whole = size.next_multiple_of(u64::from(disk.block_size()));
        assert!(
            refused.contains(&format!("truncate -s {whole}")),
            "{refused}"
        );
    }
}

#[test]
fn a_disk_grows_with_its_image_and_does_not_shrink() {
    let folder = Folder::new();
    let path = folder.image(MIB);
    let disk = open(&path, (EngineOption::Sync, CacheOption::PageCache));
    let image = File::options().write(true).open(&path).unwrap();
    let mut rig = io_queue(&disk);
    assert_eq!(disk.grow(), None);
    assert_eq!(rig.write(2048, &[1; 512]), Outcome::Failed(libc::EINVAL));
    // A partial block is not offered.
    image.set_len(MIB + 1023).unwrap();
    assert_eq!(disk.grow(), Some(MIB + 512));
    assert_eq!(disk.grow(), None);
    assert_eq!(rig.write(2048, &[1; 512]), Outcome::Done);
    assert_eq!(rig.write(2049, &[1; 512]), Outcome::Failed(libc::EINVAL));
    image.set_len(MIB).unwrap();
    assert_eq!((disk.grow(), disk.size_bytes()), (None, MIB + 512));
    assert_eq!(rig.read(2048, 512).0, Outcome::Failed(libc::EIO));
    let part = DiskOptions {
        size_bytes: Some(4096),
        lock: false,
        ..DiskOptions::new(&path)
    };
    let part = ServedDisk::open(part).unwrap();
    image.set_len(2 * MIB).unwrap();
    assert_eq!(
        (part.grow(), part.size_bytes()),
        (None, 4096),
        "a part stays one"
    );
}
