//! A flush ends when the data are on the image, as the kernel shows: the dirty pages of a file, the
//! flushes that a device received.
#![allow(unsafe_code)] // cachestat(2) is in no crate yet.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use weir_model::Op;
use weir_tapdisk::engine::{CacheOption, EngineOption};
use weir_tapdisk::{Outcome, Request};
use weir_testing::{LoopDisk, MemoryFolder};

use crate::location::{Folder, image, io_queue, open};
use crate::support::{Memory, skipped};

/// linux/mman.h, `struct cachestat`.
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Pages of a file that are not on its disk yet: cachestat(2), Linux 6.5.
fn pages_to_write(path: &Path) -> io::Result<u64> {
    const CACHESTAT: libc::c_long = 451;
    let file = File::open(path)?;
    let range = [0_u64, 0];
    let mut stat = CacheStat::default();
    // SAFETY: the descriptor is open, and both structures outlive the call.
    let done = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), &mut stat, 0) };
    match done {
        0 => Ok(stat.dirty + stat.writeback),
        _ => Err(io::Error::last_os_error()),
    }
}

const CACHED: [(EngineOption, CacheOption); 2] = [
    (EngineOption::Uring, CacheOption::PageCache),
    (EngineOption::Sync, CacheOption::PageCache),
];

#[test]
fn a_flush_leaves_no_dirty_page() {
    let test = "a_flush_leaves_no_dirty_page";
    for way in CACHED {
        let folder = Folder::new();
        let path = folder.image(4 << 20);
        let disk = open(&path, way);
        // One queue flushes what another one wrote.
        let (mut writer, mut flusher) = (io_queue(&disk), io_queue(&disk));
        let data = vec![1; 1 << 20];
        assert_eq!(writer.write(0, &data), Outcome::Done);
        match pages_to_write(&path) {
            Ok(0) => return skipped(test, "the file system writes at once"),
            Ok(_) => {}
            Err(why) => return skipped(test, why),
        }
        assert_eq!(flusher.run_without_memory(Request::FLUSH), Outcome::Done);
        assert_eq!(pages_to_write(&path).unwrap(), 0, "{}", disk.choice());
    }
}

#[test]
fn a_durable_write_leaves_no_dirty_page() {
    let test = "a_durable_write_leaves_no_dirty_page";
    for way in CACHED {
        let folder = Folder::new();
        let path = folder.image(4 << 20);
        let disk = open(&path, way);
        let mut rig = io_queue(&disk);
        assert_eq!(rig.write(2048, &vec![1; 65_536]), Outcome::Done);
        match pages_to_write(&path) {
            Ok(0) => return skipped(test, "the file system writes at once"),
            Ok(_) => {}
            Err(why) => return skipped(test, why),
        }
        let durable = Request {
            fua: true,
            ..Request::new(Op::Write, 0, 65_536)
        };
        assert_eq!(
            rig.run(durable, Memory::of(&vec![2; 65_536])).0,
            Outcome::Done
        );
        assert_eq!(pages_to_write(&path).unwrap(), 0, "{}", disk.choice());
    }
}

/// The flushes that a device received: Documentation/block/stat.rst, the sixteenth number.
fn flushes(device: &LoopDisk) -> u64 {
    let stat = fs::read_to_string(device.sysfs().join("stat")).unwrap();
    let number = stat
        .split_whitespace()
        .nth(15)
        .expect("Linux 5.5 counts flushes");
    number.parse().unwrap()
}

#[test]
fn a_device_receives_each_flush_before_it_is_reported_as_done() {
    let test = "a_device_receives_each_flush_before_it_is_reported_as_done";
    for way in crate::location::MODES {
        let device = match LoopDisk::new(4) {
            Ok(device) => device,
            Err(why) => return skipped(test, why),
        };
        let cache = fs::read_to_string(device.sysfs().join("queue/write_cache")).unwrap();
        assert_eq!(cache.trim(), "write back");
        let disk = open(Path::new(device.path()), way);
        let mut rig = io_queue(&disk);
        for _ in 0..5 {
            let before = flushes(&device);
            assert_eq!(rig.write(8, &[4; 4096]), Outcome::Done);
            assert_eq!(rig.run_without_memory(Request::FLUSH), Outcome::Done);
            assert!(flushes(&device) > before, "{}", disk.choice());
        }
        let before = flushes(&device);
        let durable = Request {
            fua: true,
            ..Request::new(Op::Write, 16, 4096)
        };
        assert_eq!(rig.run(durable, Memory::of(&[2; 4096])).0, Outcome::Done);
        assert!(flushes(&device) > before, "{}", disk.choice());
    }
}

#[test]
fn after_data_were_lost_no_flush_succeeds() {
    let test = "after_data_were_lost_no_flush_succeeds";
    for way in CACHED {
        // A device of 16 MiB with space for 4: the page cache accepts more than can be written
        // back.
        let folder = MemoryFolder::new(4);
        let device = folder.and_then(|folder| {
            let device = LoopDisk::on(&image(folder.path(), 16 << 20), &[])?;
            Ok((device, folder))
        });
        let (device, _folder) = match device {
            Ok(made) => made,
            Err(why) => return skipped(test, why),
        };
        let disk = open(Path::new(device.path()), way);
        let (mut first, mut second) = (io_queue(&disk), io_queue(&disk));
        assert_eq!(first.run_without_memory(Request::FLUSH), Outcome::Done);
        assert_eq!(first.write(0, &vec![1; 8 << 20]), Outcome::Done);
        let is_failure = |outcome| matches!(outcome, Outcome::Failed(_));
        assert!(
            is_failure(first.run_without_memory(Request::FLUSH)),
            "{}",
            disk.choice()
        );
        // The kernel reports the error once; the guest receives it for every flush.
        assert!(
            is_failure(first.run_without_memory(Request::FLUSH)),
            "{}",
            disk.choice()
        );
        assert!(
            is_failure(second.run_without_memory(Request::FLUSH)),
            "{}",
            disk.choice()
        );
        let durable = Request {
            fua: true,
            ..Request::new(Op::Write, 0, 4096)
        };
        let outcome = second.run(durable, Memory::of(&[2; 4096])).0;
        assert!(is_failure(outcome), "{}", disk.choice());
        // The data can still be read.
        assert_eq!(first.read(0, 4096).0, Outcome::Done);
    }
}
