//! A spool on a disk that is full, hangs, loses data or is in use: the sender never waits for it,
//! and each row arrives or is reported as lost.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::simulation::{INSTANCE, Simulation, TINY};
use support::until;
use weir_testing::{LoopDisk, MemoryFolder, run, skipped};
use weir_wire::outbox::OutboxCapacity;
use weir_wire::{Uplink, UplinkOptions};

/// More disk space than any test uses.
const AMPLE: OutboxCapacity = OutboxCapacity {
    memory_bytes: TINY.memory_bytes,
    disk_bytes: 256 << 20,
};

fn simulation(spool: &Path) -> Simulation {
    let spool = spool.to_owned();
    Simulation::new(1, AMPLE, |options| options.spool = Some(spool))
}

/// No monitor listens.
fn cut_off(simulation: &Simulation) {
    simulation.relay.set_target(None);
    simulation.relay.close_connections();
}

fn join(simulation: &Simulation) {
    simulation
        .relay
        .set_target(Some(simulation.ledger().address()));
}

/// Sends until the spool is in use, at the speed of the disk at most.
fn spool_some(simulation: &mut Simulation) {
    simulation.is_paced = true;
    (0..600).for_each(|_| simulation.send_rows());
    until("it spools", || spooled_bytes(simulation) > 0);
    simulation.is_paced = false;
}

fn spooled_bytes(simulation: &Simulation) -> u64 {
    simulation.uplink.state().waiting.spooled_bytes
}

fn memory_is_kept(simulation: &Simulation) {
    let waiting = simulation.uplink.state().waiting;
    let memory_bytes = waiting.bytes - waiting.spooled_bytes;
    assert!(memory_bytes <= AMPLE.memory_bytes as u64, "{waiting:?}");
}

fn segments(spool: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(spool).unwrap().map(|e| e.unwrap().path());
    let mut paths: Vec<_> = entries
        .filter(|p| p.extension().is_some_and(|e| e == "weirspool"))
        .collect();
    paths.sort();
    paths
}

#[test]
fn a_full_disk_loses_only_counted_rows() {
    let folder = match MemoryFolder::new(1) {
        Ok(folder) => folder,
        Err(why) => return skipped("a_full_disk_loses_only_counted_rows", &why),
    };
    // Another file uses most of the disk.
    let other = folder.path().join("other");
    fs::write(&other, vec![1; 600 << 10]).unwrap();
    let mut simulation = simulation(&folder.path().join("spool"));
    cut_off(&simulation);
    for _ in 0..4_000 {
        simulation.send_rows();
    }
    until("the disk is full", || {
        // The disk is tried again after more has been sent.
        simulation.send_rows();
        simulation.uplink.state().waiting.disk_failures > 0
    });
    memory_is_kept(&simulation);
    // Then there is space again.
    let failures = simulation.uplink.state().waiting.disk_failures;
    fs::remove_file(&other).unwrap();
    spool_some(&mut simulation);
    assert!(spooled_bytes(&simulation) > 500 << 10);
    eprintln!("{failures} writes failed while the disk was full");
    join(&simulation);
    simulation.check();
    let causes = simulation.ledger().account(INSTANCE).causes;
    assert_eq!(Vec::from_iter(causes.keys()), ["spool_full"]);
    until("nothing is left on disk", || {
        segments(&folder.path().join("spool")).is_empty()
    });
}

/// The file system hangs, as one of an unreachable server: sending and everything without disk
/// access continue, and closing ends in time.
#[test]
fn a_hanging_disk_does_not_block_sending() {
    let disk = LoopDisk::new(64).and_then(|disk| Ok((disk.file_system()?, disk)));
    let (folder, _disk) = match disk {
        Ok(disk) => disk,
        Err(why) => return skipped("a_hanging_disk_does_not_block_sending", &why),
    };
    let folder_name = folder.to_string_lossy().into_owned();
    let mut simulation = simulation(&folder.join("spool"));
    cut_off(&simulation);
    let frozen = Frozen::new(&folder_name);
    for _ in 0..4_000 {
        simulation.send_rows();
    }
    memory_is_kept(&simulation);
    assert_eq!(spooled_bytes(&simulation), 0);
    simulation.account_drops();
    assert!(!simulation.dropped.is_empty());
    // The connection needs no disk.
    join(&simulation);
    until("it is welcomed again", || {
        simulation.uplink.state().connected
    });
    drop(frozen);
    simulation.check();

    let _frozen = Frozen::new(&folder_name);
    cut_off(&simulation);
    for _ in 0..1_000 {
        simulation.send_rows();
    }
    assert!(
        !support::within(|| simulation.uplink.close()),
        "something is left"
    );
}

/// A frozen file system that is thawed when this is dropped.
struct Frozen(String);

impl Frozen {
    fn new(mounted: &str) -> Frozen {
        run("fsfreeze", &["-f", mounted]).unwrap();
        Frozen(mounted.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run("fsfreeze", &["-u", &self.0]).unwrap();
    }
}

#[test]
fn lost_and_corrupt_segments_are_counted() {
    let directory = support::authority::Directory::new();
    let spool = directory.path().join("spool");
    let mut simulation = simulation(&spool);
    cut_off(&simulation);
    spool_some(&mut simulation);
    let segments = segments(&spool);
    assert!(segments.len() > 3);
    fs::remove_file(&segments[0]).unwrap();
    let mut bytes = fs::read(&segments[2]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segments[2], bytes).unwrap();
    join(&simulation);
    simulation.check();
    let account = simulation.ledger().account(INSTANCE);
    assert_eq!(Vec::from_iter(account.causes.keys()), ["spool_unreadable"]);
    assert_eq!(simulation.uplink.state().waiting.disk_failures, 2);
}

#[test]
fn a_removed_directory_loses_only_counted_rows() {
    let directory = support::authority::Directory::new();
    let spool = directory.path().join("spool");
    let mut simulation = simulation(&spool);
    cut_off(&simulation);
    fs::remove_dir_all(&spool).unwrap();
    for _ in 0..2_000 {
        simulation.send_rows();
    }
    until("writing fails", || {
        simulation.send_rows();
        simulation.uplink.state().waiting.disk_failures > 0
    });
    memory_is_kept(&simulation);
    join(&simulation);
    simulation.check();
    assert!(!simulation.dropped.is_empty());
}

#[test]
fn old_segments_are_removed_and_a_spool_is_not_shared() {
    let directory = support::authority::Directory::new();
    let spool = directory.path().join("spool");
    fs::create_dir(&spool).unwrap();
    let left = spool.join("00000000000000000003.weirspool");
    fs::write(&left, b"weirspl1").unwrap();
    fs::write(spool.join("mine.txt"), b"not of a spool").unwrap();
    let simulation = simulation(&spool);
    assert!(!left.exists());
    assert!(spool.join("mine.txt").exists());
    let options = UplinkOptions {
        spool: Some(spool.clone()),
        ..support::agent_rows::options(simulation.ledger().dial(), 8)
    };
    let error = Uplink::dial(options.clone()).err().unwrap().to_string();
    let expected = format!("spool: another agent uses {}", spool.display());
    assert!(error.contains(&expected), "{error}");
    drop(simulation);
    let uplink = Uplink::dial(options).unwrap();
    assert!(uplink.receive(Duration::ZERO).is_none());
}
