//! Limits of a disk: which requests are held, and when they are issued.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_model::Op;
use weir_tap::tapdisk::words::DiskLimits;
use weir_tapdisk::engine::{CacheOption, EngineOption};
use weir_tapdisk::{DiskOptions, Outcome, Request, ServedDisk};

use crate::location::{Folder, MODES, io_queue, options};
use crate::support::{Memory, Rig};

const MIB: u64 = 1 << 20;

/// A limit that holds every request after the first one for longer than a test.
const TIGHT: DiskLimits = DiskLimits {
    iops: 0,
    bytes_per_second: 1,
    burst_ms: 1,
};

/// A disk with limits.
fn limited(
    folder: &Folder,
    way: (EngineOption, CacheOption),
    limits: DiskLimits,
) -> Arc<ServedDisk> {
    let disk = ServedDisk::open(DiskOptions {
        limits,
        ..options(&folder.image(MIB), way)
    });
    disk.unwrap()
}

fn take_read(rig: &mut Rig) -> u64 {
    let read = Request::new(Op::Read, 0, 4096);
    rig.take(read, Memory::new(&[4096], 0))
}

#[test]
fn requests_have_the_rate_and_stay_in_order() {
    for way in MODES {
        let folder = Folder::new();
        let disk = limited(
            &folder,
            way,
            DiskLimits {
                iops: 100,
                bytes_per_second: 0,
                burst_ms: 50,
            },
        );
        // Two queues share the bucket.
        let mut rigs = [io_queue(&disk), io_queue(&disk)];
        let started = Instant::now();
        for rig in &mut rigs {
            (0..10).for_each(|_| _ = take_read(rig));
            rig.io_queue.submit().unwrap();
        }
        // At most: more may be admitted if this thread waits for a processor.
        assert!(disk.throttle().held() <= 14, "six of them are a burst");
        for rig in &mut rigs {
            let ended = rig.finish();
            let tokens: Vec<u64> = ended.iter().map(|(done, _)| done.token).collect();
            assert!(ended.iter().all(|(done, _)| done.outcome == Outcome::Done));
            assert_eq!(tokens.len(), 10);
            // The kernel may end requests in another order than they are issued.
            let is_ordered = way.0 == EngineOption::Sync;
            assert!(!is_ordered || tokens.is_sorted(), "{tokens:?}");
        }
        assert!(started.elapsed() >= Duration::from_millis(140));
        assert_eq!(disk.throttle().held(), 0);
        let reads = disk.counters().of(Op::Read);
        assert_eq!((reads.requests, reads.bytes), (20, 20 * 4096));
    }
}

#[test]
fn a_limit_that_is_removed_releases_what_it_holds() {
    for way in MODES {
        let folder = Folder::new();
        let disk = ServedDisk::open(options(&folder.image(MIB), way)).unwrap();
        let mut rig = io_queue(&disk);
        take_read(&mut rig);
        rig.finish();
        disk.throttle().set(TIGHT);
        (0..5).for_each(|_| _ = take_read(&mut rig));
        rig.io_queue.submit().unwrap();
        assert_eq!((disk.throttle().held(), rig.io_queue.in_flight()), (4, 5));
        let due = rig.io_queue.due().expect("it looks for other limits");
        assert!(due < Instant::now() + Duration::from_secs(1));
        // A request that comes later is not issued before them.
        let last = take_read(&mut rig);
        rig.io_queue.submit().unwrap();
        assert_eq!(disk.throttle().held(), 5);
        disk.throttle().set(DiskLimits::default());
        let ended = rig.finish();
        assert_eq!(ended.len(), 6);
        assert!(ended.iter().any(|(done, _)| done.token == last));
        assert_eq!(disk.throttle().held(), 0);
    }
}

#[test]
fn a_queue_that_ends_holds_nothing() {
    for way in MODES {
        let folder = Folder::new();
        let disk = limited(&folder, way, TIGHT);
        let mut rig = io_queue(&disk);
        (0..5).for_each(|_| _ = take_read(&mut rig));
        let mut done = Vec::new();
        rig.io_queue.drain(&mut done).unwrap();
        assert_eq!(rig.with_memory(done).len(), 5);
        // A queue that is dropped counts none of its own any more.
        let mut dropped = io_queue(&disk);
        (0..3).for_each(|_| _ = take_read(&mut dropped));
        dropped.io_queue.submit().unwrap();
        assert_eq!(disk.throttle().held(), 3);
        drop(dropped);
        assert_eq!((disk.throttle().held(), disk.counters().in_flight), (0, 0));
    }
}

#[test]
fn the_time_that_a_request_is_held_is_part_of_its_latency() {
    let folder = Folder::new();
    let disk = limited(
        &folder,
        MODES[0],
        DiskLimits {
            iops: 20,
            bytes_per_second: 0,
            burst_ms: 1,
        },
    );
    let mut rig = io_queue(&disk);
    (0..2).for_each(|_| _ = take_read(&mut rig));
    rig.finish();
    let reads = disk.counters().of(Op::Read);
    assert!(reads.latency_ns >= 49_000_000, "{} ns", reads.latency_ns);
}
