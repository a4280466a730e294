//! [`Disks`]: per disk, how many requests are outstanding and where the last one ended.

use std::collections::HashMap;

use weir_model::{Event, Symbol};

/// Most disks that are told apart. Requests of further ones have neither `in_flight` nor `seek`.
pub const DISKS_MAX: usize = 1 << 16;

/// What is known of each disk between requests.
#[derive(Debug, Default)]
pub struct Disks {
    disks: HashMap<[Option<Symbol>; 3], Disk>,
}

#[derive(Debug, Default)]
struct Disk {
    outstanding: i64,
    /// Last sector of the previous request that has one.
    last_sector: Option<i64>,
}

impl Disks {
    /// A request was issued: how many are outstanding now, itself included, and how far its first
    /// sector lies from the last sector of the disk's previous request (sequential is 1, as in
    /// vscsiStats). Requests without sectors, flushes, move no head.
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

    /// One request more is outstanding, or one less.
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
