//! The locations of disks on the host, found without weir, and whether a row of weir agrees with
//! them.

use std::collections::{BTreeMap, BTreeSet};

use weir_testing::plan::LoadRequest;
use weir_testing::{Counts, DiskLoad};

use crate::host::Extent;
use crate::watching::{Delivered, Seen};

/// The part of a disk at each device and first sector.
#[derive(Default)]
pub struct Places(BTreeMap<(String, u64), Piece>);

/// A piece of a disk's file or device.
struct Piece {
    sectors: u64,
    disk: usize,
    /// Its first sector in the file or device.
    within: u64,
}

impl Places {
    /// Records that disk number `disk` has these extents on a device.
    pub fn add(&mut self, device: &str, disk: usize, extents: Vec<Extent>) {
        for (within, sector, sectors) in extents {
            let piece = Piece {
                sectors,
                disk,
                within,
            };
            self.0.insert((device.to_owned(), sector), piece);
        }
    }

    /// The disk of a row, and the sector in its file or device.
    pub fn find(&self, row: &Seen) -> Option<(usize, u64)> {
        let key = (row.device().to_owned(), row.sector);
        let ((device, first), piece) = self.0.range(..=key).next_back()?;
        if device != row.device() {
            return None;
        }
        let offset = row.sector - first;
        (offset < piece.sectors).then_some((piece.disk, piece.within + offset))
    }

    /// The number of pieces of a disk.
    pub fn pieces(&self, disk: usize) -> i64 {
        self.0.values().filter(|piece| piece.disk == disk).count() as i64
    }

    /// The VM's reads and writes of a disk, with their sectors in its file or device.
    pub fn rows<'a>(&self, seen: &'a [Seen], disk: usize) -> Vec<(&'a Seen, u64)> {
        let data = |row: &&Seen| ["r", "w"].contains(&row.op.as_str()) && !is_by_host(row);
        self.of(seen.iter().filter(data), disk).collect()
    }

    /// Sectors of a disk that other processes on the host have read.
    pub fn read_by_host(&self, seen: &[Seen], disk: usize) -> BTreeSet<u64> {
        let rows = self.of(seen.iter().filter(|row| is_by_host(row)), disk);
        rows.flat_map(|(row, at)| at..at + row.sectors).collect()
    }

    fn of<'a>(
        &self,
        rows: impl Iterator<Item = &'a Seen>,
        disk: usize,
    ) -> impl Iterator<Item = (&'a Seen, u64)> {
        rows.filter_map(move |row| {
            let (_, within) = self.find(row).filter(|found| found.0 == disk)?;
            Some((row, within))
        })
    }
}

/// Whether a request is by `dd` or by weir, which reads the headers of images: neither is a VM.
pub fn is_by_host(row: &Seen) -> bool {
    let comm = row.comm.as_deref().unwrap_or_default();
    comm == "dd" || comm.starts_with("weir") || comm == "inventory"
}

/// Asserts that all requests of each device are reported, or counted as missing.
pub fn adds_up(delivered: &Delivered, device: &str, kernel: Counts) {
    let rows = delivered.rows.iter().filter(|row| row.device() == device);
    let sum = rows.count() as i64 + delivered.missed(device);
    assert_eq!(
        sum,
        kernel.requests(),
        "{device}: {kernel:?} {}",
        delivered.summary
    );
    assert!(
        delivered.missed(device) <= MISSED_MAX,
        "{}",
        delivered.summary
    );
}

/// The maximum number of requests of a device that may not be observed: on some kernels a few
/// completions run where no program can be attached.
const MISSED_MAX: i64 = 64;

/// The sectors of some requests.
pub fn sectors(plan: &[LoadRequest]) -> BTreeSet<u64> {
    let ranges = plan.iter().map(|r| r.sector..r.sector + r.sectors);
    ranges.flatten().collect()
}

/// The reads and the writes of a load.
pub fn planned(load: &DiskLoad) -> (Vec<LoadRequest>, Vec<LoadRequest>) {
    load.requests().partition(|request| request.op == 'r')
}
