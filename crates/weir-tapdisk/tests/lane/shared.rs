//! Several queues of one disk, and what they share.

use std::sync::Arc;
use std::thread;

use weir_model::Op;
use weir_tapdisk::{Lane, LaneOptions, Outcome, Request};

use crate::place::{Folder, WAYS, lane, open};
use crate::support::{Memory, Rig};

const MIB: u64 = 1 << 20;

#[test]
fn queues_of_one_disk_work_side_by_side() {
    const QUEUES: u64 = 4;
    const ROUNDS: u64 = 50;
    for way in WAYS {
        let folder = Folder::new();
        let disk = open(&folder.image(QUEUES * MIB), way);
        let queue = |number: u64| {
            let disk = Arc::clone(&disk);
            thread::spawn(move || {
                let mut rig = lane(&disk);
                for round in 0..ROUNDS {
                    for place in 0..16 {
                        let sector = (number * MIB + place * 65_536) / 512;
                        let write = Request::new(Op::Write, sector, 65_536);
                        let byte = (number * 50 + round) as u8;
                        rig.take(write, Memory::of(&vec![byte; 65_536]));
                    }
                    let ended = rig.finish();
                    assert!(ended.iter().all(|(done, _)| done.outcome == Outcome::Done));
                    assert_eq!(rig.order(Request::FLUSH), Outcome::Done);
                }
            })
        };
        let queues: Vec<_> = (0..QUEUES).map(queue).collect();
        queues.into_iter().for_each(|queue| queue.join().unwrap());
        let mut rig = lane(&disk);
        for number in 0..QUEUES {
            let (_, read) = rig.read(number * MIB / 512, MIB as usize);
            assert!(
                read.iter()
                    .all(|byte| *byte == (number * 50 + ROUNDS - 1) as u8)
            );
        }
        drop(rig);
        // What queues that are gone have counted is still known.
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
fn a_lane_may_be_made_by_another_thread() {
    for way in WAYS {
        let folder = Folder::new();
        let disk = open(&folder.image(MIB), way);
        let lane = Lane::new(&disk, LaneOptions { queue: 1, depth: 8 }).unwrap();
        let worker = thread::spawn(move || {
            let mut rig = Rig::new(lane);
            (rig.write(0, &[6; 4096]), rig.read(0, 4096))
        });
        let done = worker.join().unwrap();
        assert_eq!(done, (Outcome::Done, (Outcome::Done, vec![6; 4096])));
    }
}

#[test]
fn the_sign_comes_and_goes() {
    for way in &WAYS[..2] {
        let folder = Folder::new();
        let disk = open(&folder.image(MIB), *way);
        let mut rig = lane(&disk);
        for _ in 0..50 {
            rig.take(Request::new(Op::Read, 0, 4096), Memory::new(&[4096], 0));
            rig.lane.submit().unwrap();
            rig.wait();
            while rig.reap().is_empty() {}
            assert!(!rig.is_signalled() || rig.reap().is_empty());
            assert!(!rig.is_signalled());
        }
        // Who polls arms it before he waits.
        for _ in 0..50 {
            assert!(rig.lane.arm());
            rig.take(Request::new(Op::Read, 0, 4096), Memory::new(&[4096], 0));
            rig.lane.submit().unwrap();
            rig.wait();
            while rig.reap().is_empty() {}
            // Not armed, so what ends now gives no sign; it is found by looking.
            rig.take(Request::new(Op::Read, 0, 4096), Memory::new(&[4096], 0));
            rig.lane.submit().unwrap();
            while rig.lane.arm() {
                rig.wait();
            }
            assert_eq!(rig.reap().len(), 1);
        }
    }
}

#[test]
fn a_lane_that_is_dropped_waits_for_the_kernel() {
    for way in WAYS {
        let folder = Folder::new();
        let disk = open(&folder.image(4 * MIB), way);
        for _ in 0..20 {
            let mut rig = lane(&disk);
            for number in 0..32 {
                let write = Request::new(Op::Write, number * 256, 131_072);
                rig.take(write, Memory::of(&vec![8; 131_072]));
            }
            rig.lane.submit().unwrap();
            // Its memory goes with it, after the lane: fields are dropped in their order.
            drop(rig);
            assert_eq!(disk.counters().in_flight, 0);
        }
    }
}
