//! [`Disks`]: the number of outstanding requests and the last sector of each disk.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use weir_model::{Event, Symbol};

/// Maximum number of disks that are tracked. Requests of others have neither `in_flight` nor
/// `seek`.
pub const DISKS_MAX: usize = 1 << 16;

/// The state of each disk between requests.
#[derive(Debug, Default)]
pub struct Disks {
    disks: HashMap<[Option<Symbol>; 3], Disk, RandomState>,
}

#[derive(Debug, Default)]
struct Disk {
    outstanding: i64,
    /// Last sector of the previous request that has an extent.
    last_sector: Option<i64>,
}

impl Disks {
    /// Processes an issue. Returns the number of outstanding requests, including this one, and the
    /// seek distance: first sector minus the last sector of the disk's previous request (sequential
    /// is 1, as in vscsiStats). Requests without sectors (flushes) do not affect the seek distance.
    pub fn issue(&mut self, event: &Event) -> (Option<i64>, Option<i64>) {
        let Some(disk) = self.disk(event) else {
            return (None, None);
        };
        disk.outstanding += 1;
        let previous = disk.last_sector;
        let seek = event.sector.zip(previous).map(|(first, last)| first - last);
        if let Some(first) = event.sector {
            disk.last_sector = Some(first + event.sectors - 1);
        }
        (Some(disk.outstanding), seek)
    }

    /// Adds `change` (1 or -1) to the number of outstanding requests.
    pub fn outstanding(&mut self, event: &Event, change: i64) {
        if let Some(disk) = self.disk(event) {
            disk.outstanding = (disk.outstanding + change).max(0);
        }
    }

    fn disk(&mut self, event: &Event) -> Option<&mut Disk> {
        let key = [event.vm, event.vdisk, event.pdisk];
        if self.disks.len() >= DISKS_MAX && !self.disks.contains_key(&key) {
            return None;
        }
        Some(self.disks.entry(key).or_default())
    }
}
