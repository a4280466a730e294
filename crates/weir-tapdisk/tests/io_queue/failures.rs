//! Errors are reported with their errno to the request that caused them, and nothing else is
//! affected.

use std::fs::{self, File, OpenOptions};
use std::path::Path;

use libc::{EAGAIN, EINVAL, EIO, ENOSPC, EROFS};
use weir_model::Op;
use weir_tapdisk::{DiskOptions, IoQueue, IoQueueOptions, Outcome, Request, ServedDisk};
use weir_testing::{LoopDisk, MemoryFolder};

use crate::location::{Folder, MODES, image, io_queue, open, options};
use crate::support::{Memory, Rig, skipped};

const MIB: u64 = 1 << 20;

fn failed(errno: i32) -> Outcome {
    Outcome::Failed(errno)
}

#[test]
fn a_full_file_system_is_an_error_and_earlier_data_are_kept() {
    let test = "a_full_file_system_is_an_error_and_earlier_data_are_kept";
    for way in MODES {
        let folder = match MemoryFolder::new(2) {
            Ok(folder) => folder,
            Err(why) => return skipped(test, why),
        };
        let disk = open(&image(folder.path(), 8 * MIB), way);
        let mut rig = io_queue(&disk);
        let block = vec![7_u8; 65_536];
        let mut written = 0;
        let outcome = loop {
            match rig.write(written * 128, &block) {
                Outcome::Done => written += 1,
                outcome => break outcome,
            }
        };
        assert_eq!(outcome, failed(ENOSPC), "{}", disk.choice());
        assert!((1..64).contains(&written), "{written}");
        for number in 0..written {
            let (outcome, read) = rig.read(number * 128, block.len());
            assert_eq!((outcome, read == block), (Outcome::Done, true));
        }
        // Deallocated space is available again.
        let first = Request::new(Op::Discard, 0, 4 * block.len() as u64);
        assert_eq!(rig.run_without_memory(first), Outcome::Done);
        assert_eq!(rig.write(written * 128, &block), Outcome::Done);
        assert_eq!(disk.counters().of(Op::Write).errors, 1);
    }
}

#[test]
fn reading_a_truncated_file_is_an_error() {
    for way in MODES {
        let folder = Folder::new();
        let path = folder.image(MIB);
        let disk = open(&path, way);
        let mut rig = io_queue(&disk);
        assert_eq!(rig.write(0, &vec![3; 65_536]), Outcome::Done);
        // Inside a block, within a request.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(10_000).unwrap();
        assert_eq!(rig.read(0, 65_536).0, failed(EIO), "{}", disk.choice());
        assert_eq!(rig.read(128, 4096).0, failed(EIO), "{}", disk.choice());
        let (outcome, read) = rig.read(0, 8192);
        assert_eq!((outcome, read), (Outcome::Done, vec![3; 8192]));
        assert_eq!(disk.counters().of(Op::Read).errors, 2);
        // The same for a request through a bounce buffer.
        let read = Request::new(Op::Read, 0, 65_536);
        let (outcome, _) = rig.run(read, Memory::new(&[65_536], 1));
        assert_eq!(outcome, failed(EIO), "{}", disk.choice());
    }
}

#[test]
fn a_device_that_fails_is_an_error() {
    let test = "a_device_that_fails_is_an_error";
    for way in MODES {
        let device = match LoopDisk::new(4) {
            Ok(device) => device,
            Err(why) => return skipped(test, why),
        };
        let disk = open(Path::new(device.path()), way);
        let mut rig = io_queue(&disk);
        assert_eq!(rig.write(0, &vec![5; 8192]), Outcome::Done);
        // The device loses its second half: a loop device does not read beyond its file's end.
        let file = OpenOptions::new().write(true).open(device.image()).unwrap();
        file.set_len(2 * MIB).unwrap();
        let behind = 3 * MIB / 512;
        assert_eq!(rig.read(behind, 4096).0, failed(EIO), "{}", disk.choice());
        assert_eq!(rig.read(0, 8192), (Outcome::Done, vec![5; 8192]));
    }
}

#[test]
fn invalid_requests_are_rejected_without_effect() {
    let folder = Folder::new();
    let path = folder.image(MIB);
    for way in MODES {
        let disk = ServedDisk::open(DiskOptions {
            block_size: Some(4096),
            ..options(&path, way)
        })
        .unwrap();
        let mut rig = io_queue(&disk);
        let end = disk.sectors();
        let lengths = |rig: &mut Rig, op, sector, bytes, memory: usize| {
            rig.run(Request::new(op, sector, bytes), Memory::new(&[memory], 0))
                .0
        };
        let cases: [(Op, u64, u64, usize); 8] = [
            (Op::Write, end, 4096, 4096),
            (Op::Write, end - 8, 8192, 8192),
            (Op::Read, u64::MAX, 4096, 4096),
            (Op::Read, u64::MAX / 512, 4096, 4096),
            (Op::Write, 1, 4096, 4096),
            (Op::Write, 0, 512, 512),
            (Op::Write, 0, 4096, 8192),
            (Op::Write, 0, 8192, 4096),
        ];
        for (op, sector, bytes, memory) in cases {
            let outcome = lengths(&mut rig, op, sector, bytes, memory);
            assert_eq!(outcome, failed(EINVAL), "{op:?} {sector} {bytes} {memory}");
        }
        for op in [Op::Discard, Op::WriteZeroes] {
            assert_eq!(
                rig.run_without_memory(Request::new(op, end, 4096)),
                failed(EINVAL)
            );
            assert_eq!(
                rig.run_without_memory(Request::new(op, 0, u64::MAX)),
                failed(EINVAL)
            );
            assert_eq!(
                rig.run_without_memory(Request::new(op, 8, 0)),
                Outcome::Done
            );
        }
        assert_eq!(rig.read(0, MIB as usize).1, vec![0; MIB as usize]);
        assert_eq!(fs::metadata(&path).unwrap().len(), MIB);
    }
}

#[test]
fn a_read_only_disk_rejects_writes() {
    let folder = Folder::new();
    let path = folder.image(MIB);
    for way in MODES {
        let disk = ServedDisk::open(DiskOptions {
            read_only: true,
            ..options(&path, way)
        })
        .unwrap();
        assert!(disk.is_read_only() && !disk.discards());
        let mut rig = io_queue(&disk);
        assert_eq!(rig.write(0, &[1; 4096]), failed(EROFS));
        assert_eq!(
            rig.run_without_memory(Request::new(Op::Discard, 0, 4096)),
            failed(EROFS)
        );
        assert_eq!(
            rig.run_without_memory(Request::new(Op::WriteZeroes, 0, 4096)),
            failed(EROFS)
        );
        assert_eq!(rig.run_without_memory(Request::FLUSH), Outcome::Done);
        assert_eq!(rig.read(0, 4096), (Outcome::Done, vec![0; 4096]));
    }
}

#[test]
fn requests_beyond_the_queue_depth_fail_and_others_do_not() {
    let folder = Folder::new();
    let path = folder.image(MIB);
    for way in MODES {
        let disk = open(&path, way);
        let options = IoQueueOptions { queue: 0, depth: 4 };
        let mut rig = Rig::new(IoQueue::new(&disk, options).unwrap());
        for number in 0..6 {
            rig.take(
                Request::new(Op::Read, number * 8, 4096),
                Memory::new(&[4096], 0),
            );
        }
        let ended = rig.finish();
        let with = |outcome| {
            ended
                .iter()
                .filter(|(done, _)| done.outcome == outcome)
                .count()
        };
        assert_eq!((with(Outcome::Done), with(failed(EAGAIN))), (4, 2));
        assert_eq!(rig.read(0, 4096).0, Outcome::Done);
    }
}

#[test]
fn a_request_rejected_by_the_front_end_ends_with_its_outcome() {
    let folder = Folder::new();
    let disk = open(&folder.image(MIB), MODES[3]);
    let mut rig = io_queue(&disk);
    let strange = Request::new(Op::Read, 0, 0);
    rig.io_queue.reject(strange, Outcome::Unsupported, 71);
    rig.io_queue.reject(strange, failed(EIO), 72);
    let mut done = Vec::new();
    rig.io_queue.reap(&mut done);
    let outcomes: Vec<_> = done.iter().map(|done| (done.token, done.outcome)).collect();
    assert_eq!(outcomes, [(71, Outcome::Unsupported), (72, failed(EIO))]);
    let reads = disk.counters().of(Op::Read);
    assert_eq!((reads.requests, reads.errors, reads.unsupported), (2, 1, 1));
}

fn refused(options: DiskOptions) -> String {
    ServedDisk::open(options)
        .expect_err("it is refused")
        .to_string()
}

#[test]
fn an_image_that_cannot_be_served_is_reported_with_a_remedy() {
    let folder = Folder::new();
    let path = folder.image(MIB);
    let name = path.display().to_string();
    let with = |change: fn(&mut DiskOptions)| {
        let mut options = DiskOptions::new(&path);
        change(&mut options);
        refused(options)
    };
    let too_long = with(|o| o.size_bytes = Some(2 << 20));
    assert_eq!(
        too_long,
        format!(
            "{name}: has 1048576 bytes, not 2097152; extend it with `truncate -s 2097152`, or use a smaller size"
        )
    );
    assert!(with(|o| o.block_size = Some(1000)).contains("512, 1024, 2048 and 4096"));
    assert!(with(|o| o.serial = Some("x".repeat(21))).contains("at most 20"));
    let gone = refused(DiskOptions::new("/nowhere/disk.raw"));
    assert!(
        gone.starts_with("/nowhere/disk.raw: cannot find it: "),
        "{gone}"
    );
    let folder_as_image = refused(DiskOptions::new("/tmp"));
    assert!(folder_as_image.contains("neither a file nor a block device"));
    let empty = path.with_file_name("empty.raw");
    File::create(&empty).unwrap();
    assert!(refused(DiskOptions::new(&empty)).contains("is empty; extend it"));
}

#[test]
fn a_durable_write_of_zeroes_leaves_no_dirty_page() {
    let folder = Folder::new();
    let path = folder.image(MIB);
    for way in MODES {
        let disk = open(&path, way);
        let mut rig = io_queue(&disk);
        assert_eq!(rig.write(0, &[9; 16_384]), Outcome::Done);
        let zeroes = Request {
            fua: true,
            ..Request::new(Op::WriteZeroes, 8, 4096)
        };
        assert_eq!(rig.run_without_memory(zeroes), Outcome::Done);
        let (_, read) = rig.read(0, 16_384);
        assert_eq!(read[..4096], [9; 4096]);
        assert_eq!(read[4096..8192], [0; 4096]);
        assert_eq!(read[8192..], [9; 8192]);
    }
}
