//! [`Census`]: the self-check against the kernel's own counters (`/sys/block/X/stat`), which counts what no probe could see.
//!
//! The kernel adds to its counters after the tracepoint of the completion, so that what the programs have seen is ahead of them, never
//! behind, unless a completion was not seen.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use weir_model::Symbol;

use super::devices::{Device, read_text};

/// What both sides counted since the tap was opened, per disk.
#[derive(Debug, Default)]
pub struct Census {
    disks: HashMap<u32, Disk>,
}

/// One disk's completeness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completeness {
    /// The disk.
    pub path: Symbol,
    /// Finished requests that the programs saw.
    pub seen: i64,
    /// Finished requests that only the kernel's own counters know of.
    pub unseen: i64,
}

#[derive(Debug)]
struct Disk {
    path: Symbol,
    /// The kernel's count less ours when the check began.
    ahead: i64,
    seen_first: i64,
    seen: i64,
    unseen: i64,
}

impl Census {
    /// Compares again. `seen` gives the programs' count of finished requests on a disk.
    ///
    /// A disk whose statistics are switched off (`queue/iostats`) cannot be checked and is left out until they are on again.
    pub fn take(&mut self, disks: &[&Device], seen: &dyn Fn(&Device) -> i64) {
        for disk in disks.iter().filter(|d| !d.bio_based && d.index != 0) {
            let sysfs = Path::new(&disk.sysfs);
            if !counts_io(sysfs) {
                self.disks.remove(&disk.number);
                continue;
            }
            let before = seen(disk);
            let Some(kernel) = finished(sysfs) else {
                self.disks.remove(&disk.number);
                continue;
            };
            let known = self.disks.entry(disk.number).or_insert_with(|| Disk {
                path: disk.path,
                ahead: kernel - before,
                seen_first: before,
                seen: before,
                unseen: 0,
            });
            // Read after the kernel's count, ours can only be too high and what is missing too low.
            known.seen = seen(disk);
            known.unseen = known.unseen.max(kernel - known.seen - known.ahead);
        }
    }

    /// The disks on which anything happened, by path.
    pub fn disks(&self) -> Vec<Completeness> {
        let of = |d: &Disk| Completeness {
            path: d.path,
            seen: d.seen - d.seen_first,
            unseen: d.unseen,
        };
        let disks = self.disks.values().map(of);
        let mut disks: Vec<Completeness> = disks.filter(|d| d.seen + d.unseen > 0).collect();
        disks.sort_by_key(|d| d.path.as_str());
        disks
    }
}

/// Whether the disk's queue counts at all.
pub fn counts_io(sysfs: &Path) -> bool {
    read_text(&sysfs.join("queue/iostats")).is_none_or(|text| text != "0")
}

/// Requests that the kernel counted as finished: reads, writes and discards (Documentation/block/stat.rst).
fn finished(sysfs: &Path) -> Option<i64> {
    const READS: usize = 0;
    const WRITES: usize = 4;
    const DISCARDS: usize = 11;
    let text = fs::read_to_string(sysfs.join("stat")).ok()?;
    let fields: Vec<i64> = text.split_whitespace().flat_map(str::parse).collect();
    let field = |i: usize| fields.get(i).copied();
    Some(field(READS)? + field(WRITES)? + field(DISCARDS).unwrap_or(0))
}
