//! Several queues of one disk, and their shared state.

use std::sync::Arc;
use std::thread;

use weir_model::Op;
use weir_tapdisk::{IoQueue, IoQueueOptions, Outcome, Request};

use crate::location::{Folder, MODES, io_queue, open};
use crate::support::{Memory, Rig};

const MIB: u64 = 1 << 20;

#[test]
fn queues_of_one_disk_run_concurrently() {
    const QUEUES: u64 = 4;
    const ROUNDS: u64 = 50;
    for way in MODES {
        let folder = Folder::new();
        let disk = open(&folder.image(QUEUES * MIB), way);
        let queue = |number: u64| {
            let disk = Arc::clone(&disk);
            thread::spawn(move || {
                let mut rig = io_queue(&disk);
                for round in 0..ROUNDS {
                    for location in 0..16 {
                        let sector = (number * MIB + location * 65_536) / 512;
                        let write = Request::new(Op::Write, sector, 65_536);
                        let byte = (number * 50 + round) as u8;
                        rig.take(write, Memory::of(&vec![byte; 65_536]));
                    }
                    let ended = rig.finish();
                    assert!(ended.iter().all(|(done, _)| done.outcome == Outcome::Done));
                    assert_eq!(rig.run_without_memory(Request::FLUSH), Outcome::Done);
                }
            })
        };
        let queues: Vec<_> = (0..QUEUES).map(queue).collect();
        queues.into_iter().for_each(|queue| queue.join().unwrap());
        let mut rig = io_queue(&disk);
        for number in 0..QUEUES {
            let (_, read) = rig.read(number * MIB / 512, MIB as usize);
            assert!(
                read.iter()
                    .all(|byte| *byte == (number * 50 + ROUNDS - 1) as u8)
            );
        }
        drop(rig);
        // The counts of closed queues are kept.
        let counters = disk.counters();
        let writes = counters.of(Op::Write);
        assert_eq!(writes.requests, QUEUES * ROUNDS * 16);
        assert_eq!(writes.bytes, writes.requests * 65_536);
        assert_eq!(counters.of(Op::Flush).requests, QUEUES * ROUNDS);
        assert_eq!(counters.of(Op::Read).requests, QUEUES);
        assert_eq!(counters.in_flight, 0);
    }
}

#[test]
fn an_io_queue_can_be_created_by_another_thread() {
    for way in MODES {
        let folder = Folder::new();
        let disk = open(&folder.image(MIB), way);
        let io_queue = IoQueue::new(&disk, IoQueueOptions { queue: 1, depth: 8 }).unwrap();
        let worker = thread::spawn(move || {
            let mut rig = Rig::new(io_queue);
            (rig.write(0, &[6; 4096]), rig.read(0, 4096))
        });
        let done = worker.join().unwrap();
        assert_eq!(done, (Outcome::Done, (Outcome::Done, vec![6; 4096])));
    }
}

#[test]
fn the_completion_event_is_set_and_cleared() {
    for way in &MODES[..2] {
        let folder = Folder::new();
        let disk = open(&folder.image(MIB), *way);
        let mut rig = io_queue(&disk);
        for _ in 0..50 {
            rig.take(Request::new(Op::Read, 0, 4096), Memory::new(&[4096], 0));
            rig.io_queue.submit().unwrap();
            rig.wait();
            while rig.reap().is_empty() {}
            assert!(!rig.is_signalled() || rig.reap().is_empty());
            assert!(!rig.is_signalled());
        }
        // A polling front end arms the event before it waits.
        for _ in 0..50 {
            assert!(rig.io_queue.arm());
            rig.take(Request::new(Op::Read, 0, 4096), Memory::new(&[4096], 0));
            rig.io_queue.submit().unwrap();
            rig.wait();
            while rig.reap().is_empty() {}
            // Not armed, so requests that end are not signalled; they are found by polling.
            rig.take(Request::new(Op::Read, 0, 4096), Memory::new(&[4096], 0));
            rig.io_queue.submit().unwrap();
            while rig.io_queue.arm() {
                rig.wait();
            }
            assert_eq!(rig.reap().len(), 1);
        }
    }
}

#[test]
fn an_io_queue_that_is_dropped_waits_for_the_kernel() {
    for way in MODES {
        let folder = Folder::new();
        let disk = open(&folder.image(4 * MIB), way);
        for _ in 0..20 {
            let mut rig = io_queue(&disk);
            for number in 0..32 {
                let write = Request::new(Op::Write, number * 256, 131_072);
                rig.take(write, Memory::of(&vec![8; 131_072]));
            }
            rig.io_queue.submit().unwrap();
            // Its memory is freed after the I/O queue: fields are dropped in their order.
            drop(rig);
            assert_eq!(disk.counters().in_flight, 0);
        }
    }
}
