//! [`DemoGuests`]: the VMs of the demonstration and of the tutorial: two guests that share a disk.
//!
//! `web` reads at a low rate. `db` is idle, and every few seconds a checkpoint queues many writes.
//! The disk completes a known number of requests per second, so a checkpoint delays the reads of
//! `web` on every host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use crate::{DiskLoad, Guest, GuestDisk, Kit, SlowDisk};

/// The number of requests that the disk completes per second.
const IOPS: u32 = 1_000;

/// The size of the part of each guest.
const PART_MEBIBYTES: u64 = 24;

/// The time between two checkpoints of `db`: some intervals of one second have no checkpoint.
const PAUSE: Duration = Duration::from_millis(2_200);

/// More requests than `web` completes before it is stopped.
const ENDLESS: u64 = 10_000_000;

/// The running guests. They and their disk are removed when this value is dropped.
#[derive(Debug)]
pub struct DemoGuests {
    stop: Arc<AtomicBool>,
    checkpoints: Option<JoinHandle<()>>,
    // Dropped in this order: a guest uses the disk.
    _web: Guest,
    _disk: SlowDisk,
}

impl DemoGuests {
    /// Boots both guests and starts their loads.
    ///
    /// # Errors
    /// When QEMU or the disk is not available, or a guest does not boot.
    pub fn start(kit: &Kit) -> Result<DemoGuests> {
        let disk = SlowDisk::new(2 * PART_MEBIBYTES + 2, IOPS)?;
        let start = |name: &str, number: u32| {
            let first_mebibyte = 1 + u64::from(number - 1) * PART_MEBIBYTES;
            let part = disk.partition(number, first_mebibyte << 11, PART_MEBIBYTES << 11)?;
            Guest::start(kit, name, &GuestDisk::new("disk0", &part).args())
        };
        let (mut web, mut db) = (start("web", 1)?, start("db", 2)?);
        web.ready()?;
        db.ready()?;
        web.begin_load(&[DiskLoad {
            bytes: 8 << 10,
            count: ENDLESS,
            rate: 200,
            depth: 2,
            span: PART_MEBIBYTES << 20,
            ..DiskLoad::on("/dev/vda")
        }])?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let checkpoints = std::thread::spawn(move || {
            // An error means that the guest has ended.
            while !stopped.load(Ordering::Relaxed) && db.load(&[checkpoint()]).is_ok() {
                std::thread::sleep(PAUSE);
            }
        });
        Ok(DemoGuests {
            stop,
            checkpoints: Some(checkpoints),
            _web: web,
            _disk: disk,
        })
    }
}

/// A checkpoint of `db`: 1,500 sequential writes, 32 at a time, which the disk completes in two
/// seconds.
fn checkpoint() -> DiskLoad {
    DiskLoad {
        read: 0,
        write: 1,
        bytes: 16 << 10,
        count: 1500,
        depth: 32,
        sequential: true,
        ..DiskLoad::on("/dev/vda")
    }
}

impl Drop for DemoGuests {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(checkpoints) = self.checkpoints.take() {
            // A panic in the thread has been printed.
            let _ = checkpoints.join();
        }
    }
}
