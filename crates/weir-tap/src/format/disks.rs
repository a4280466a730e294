//! [`Disks`]: the number of outstanding requests, the last sector and the last issue of each disk.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use weir_model::{Event, Nanos, Symbol};

/// Maximum number of disks that are tracked. Requests of others have no `in_flight`, `seek` and
/// `interarrival`.
pub const DISKS_MAX: usize = 1 << 16;

/// The state of each disk between requests.
#[derive(Debug, Default)]
pub struct Disks {
    positions: HashMap<DiskKey, usize, RandomState>,
    disks: Vec<Disk>,
    /// The disk that was looked up last.
    last: Option<(DiskKey, usize)>,
}

/// The names of a disk: VM, virtual disk, and device or file of the host.
pub type DiskKey = [Option<Symbol>; 3];

#[derive(Debug, Default)]
struct Disk {
    outstanding: i64,
    /// Last sector of the previous request that has an extent.
    last_sector: Option<i64>,
    /// The time of the previous request.
    last_ts: Option<Nanos>,
}

/// What the disk's state adds to an issued request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Issued {
    /// The disk, for [`Disks::end`].
    pub disk: Option<usize>,
    /// The number of outstanding requests, including this one.
    pub in_flight: Option<i64>,
    /// The seek distance: first sector minus the last sector of the disk's previous request
    /// (sequential is 1, as in vscsiStats).
    pub seek_sectors: Option<i64>,
    /// The time since the disk's previous request.
    pub interarrival_ns: Option<Nanos>,
}

impl Disks {
    /// Processes the issue of a request with these sectors at `ts`. Requests without a first sector
    /// (flushes) do not affect the seek distance.
    pub fn issue(&mut self, key: DiskKey, ts: Nanos, sector: Option<i64>, sectors: i64) -> Issued {
        let Some(at) = self.position(key) else {
            return Issued::default();
        };
        let disk = &mut self.disks[at];
        disk.outstanding += 1;
        let previous = disk.last_sector;
        if let Some(first) = sector {
            disk.last_sector = Some(first + sectors - 1);
        }
        let last_ts = disk.last_ts.replace(ts);
        Issued {
            disk: Some(at),
            in_flight: Some(disk.outstanding),
            seek_sectors: sector.zip(previous).map(|(first, last)| first - last),
            interarrival_ns: last_ts.and_then(|last| ts.checked_sub(last)),
        }
    }

    /// Processes the end of a request that was issued to this disk.
    pub fn end(&mut self, disk: Option<usize>) {
        if let Some(disk) = disk {
            self.add(disk, -1);
        }
    }

    /// Adds `change` (1 or -1) to the number of outstanding requests of an event's disk.
    pub fn outstanding(&mut self, event: &Event, change: i64) {
        if let Some(disk) = self.position(disk_of(event)) {
            self.add(disk, change);
        }
    }

    fn add(&mut self, disk: usize, change: i64) {
        let disk = &mut self.disks[disk];
        disk.outstanding = (disk.outstanding + change).max(0);
    }

    /// The position of a disk, which is added if there is room.
    fn position(&mut self, key: DiskKey) -> Option<usize> {
        if let Some((last, at)) = self.last
            && last == key
        {
            return Some(at);
        }
        let at = match self.positions.get(&key) {
            Some(&at) => at,
            None if self.disks.len() >= DISKS_MAX => return None,
            None => {
                self.disks.push(Disk::default());
                let at = self.disks.len() - 1;
                self.positions.insert(key, at);
                at
            }
        };
        self.last = Some((key, at));
        Some(at)
    }
}

/// The names of an event's disk.
pub fn disk_of(event: &Event) -> DiskKey {
    [event.vm, event.vdisk, event.pdisk]
}
