//! Injected delays and errors.

use std::time::{Duration, Instant};

use libc::{EIO, ENOSPC};
use weir_model::Op;
use weir_tapdisk::inject::Injections;
use weir_tapdisk::{DiskOptions, Outcome, Request, ServedDisk};

use crate::location::{Folder, MODES, io_queue, options};
use crate::support::{Memory, Rig};

const MIB: u64 = 1 << 20;

fn rig(folder: &Folder, way: usize, delays: &[&str], errors: &[&str]) -> Rig {
    let disk = ServedDisk::open(DiskOptions {
        injections: Injections {
            delays: delays.iter().map(|rule| rule.parse().unwrap()).collect(),
            errors: errors.iter().map(|rule| rule.parse().unwrap()).collect(),
        },
        ..options(&folder.image(MIB), MODES[way])
    });
    io_queue(&disk.unwrap())
}

#[test]
fn a_request_with_an_injected_error_has_no_effect() {
    for way in 0..MODES.len() {
        let folder = Folder::new();
        let mut rig = rig(
            &folder,
            way,
            &[],
            &["ENOSPC,op=w,sectors=8..16", "EIO,op=f"],
        );
        assert_eq!(rig.write(8, &[1; 4096]), Outcome::Failed(ENOSPC));
        assert_eq!(rig.write(16, &[1; 4096]), Outcome::Done);
        assert_eq!(rig.run_without_memory(Request::FLUSH), Outcome::Failed(EIO));
        assert_eq!(rig.read(8, 4096), (Outcome::Done, vec![0; 4096]));
        assert_eq!(rig.read(16, 4096), (Outcome::Done, vec![1; 4096]));
    }
}

#[test]
fn an_injected_eopnotsupp_ends_as_unsupported() {
    let folder = Folder::new();
    let mut rig = rig(&folder, 0, &[], &["EOPNOTSUPP,op=d"]);
    assert_eq!(
        rig.run_without_memory(Request::new(Op::Discard, 0, 4096)),
        Outcome::Unsupported
    );
}

#[test]
fn the_same_seed_selects_the_same_requests() {
    let failing = || {
        let folder = Folder::new();
        let mut rig = rig(&folder, 0, &[], &["EIO,op=r,rate=25%,seed=3"]);
        let reads = (0..200).map(|number| rig.read(number % 8, 4096).0);
        reads
            .map(|outcome| outcome == Outcome::Failed(EIO))
            .collect::<Vec<_>>()
    };
    let first = failing();
    assert_eq!(first, failing());
    let hits = first.iter().filter(|hit| **hit).count();
    assert!((20..80).contains(&hits), "{hits}");
}

#[test]
fn a_delayed_request_does_not_delay_others() {
    for way in 0..MODES.len() {
        let folder = Folder::new();
        let mut rig = rig(&folder, way, &["3600s,op=w"], &[]);
        let late = rig.take(Request::new(Op::Write, 0, 4096), Memory::of(&[1; 4096]));
        rig.io_queue.submit().unwrap();
        let due = rig.io_queue.due().expect("it waits");
        assert!(due > Instant::now() + Duration::from_secs(3000));
        // It is not executed: it has no effect yet, and is still in flight.
        let read = rig.take(Request::new(Op::Read, 0, 4096), Memory::new(&[4096], 0));
        let mut ended = Vec::new();
        while ended.is_empty() {
            rig.io_queue.submit().unwrap();
            ended = rig.reap();
        }
        assert_eq!((ended[0].0.token, ended[0].1.data()), (read, vec![0; 4096]));
        assert_eq!(rig.io_queue.in_flight(), 1);
        // A drain does not wait for injected delays.
        let mut done = Vec::new();
        rig.io_queue.drain(&mut done).unwrap();
        let ended = rig.with_memory(done);
        assert_eq!(
            (ended[0].0.token, ended[0].0.outcome),
            (late, Outcome::Done)
        );
        let mut done = Vec::new();
        rig.take(Request::new(Op::Read, 0, 4096), Memory::new(&[4096], 0));
        rig.io_queue.drain(&mut done).unwrap();
        assert_eq!(rig.with_memory(done)[0].1.data(), vec![1; 4096]);
    }
}

#[test]
fn a_delay_is_part_of_the_service_time() {
    for way in MODES {
        let folder = Folder::new();
        let disk = ServedDisk::open(DiskOptions {
            injections: Injections {
                delays: vec!["20ms,op=r".parse().unwrap()],
                errors: vec!["EIO,op=r,after=1".parse().unwrap()],
            },
            ..options(&folder.image(MIB), way)
        });
        let disk = disk.unwrap();
        let mut rig = io_queue(&disk);
        assert_eq!(rig.read(0, 4096).0, Outcome::Done);
        assert_eq!(rig.read(0, 4096).0, Outcome::Failed(EIO));
        let reads = disk.counters().of(Op::Read);
        assert_eq!((reads.requests, reads.errors), (2, 1));
        assert!(reads.latency_ns >= 40_000_000, "{} ns", reads.latency_ns);
    }
}
