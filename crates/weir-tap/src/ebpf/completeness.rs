//! [`Census`]: the self-check against the kernel's own counters (`/proc/diskstats`), which counts
//! what no probe could see.
//!
//! The kernel adds to its counters after the tracepoint of the completion, so that what the
//! programs have seen is ahead of them, never behind, unless a completion was not seen.

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
    kernel_first: i64,
    kernel: i64,
    seen_first: i64,
    seen: i64,
    unseen: i64,
}

impl Census {
    /// Compares again. `seen` gives the programs' count of finished requests on a disk.
    ///
    /// A disk whose statistics are switched off (`queue/iostats`) cannot be checked and is left out
    /// until they are on again.
    pub fn take(&mut self, disks: &[&Device], seen: &dyn Fn(&Device) -> i64) {
        let disks: Vec<&&Device> = disks
            .iter()
            .filter(|d| !d.bio_based && d.index != 0)
            .collect();
        // Ours first: then a request that ends in between is missing on our side of the first
        // comparison only.
        let before: Vec<i64> = disks.iter().map(|d| seen(d)).collect();
        let Ok(text) = fs::read_to_string("/proc/diskstats") else {
            self.disks.clear();
            return;
        };
        let kernel = finished(&text);
        for (disk, before) in disks.into_iter().zip(before) {
            match kernel.get(&disk.number) {
                Some(kernel) => self.compare(disk, *kernel, before, seen(disk)),
                None => {
                    self.disks.remove(&disk.number);
                }
            }
        }
    }

    fn compare(&mut self, disk: &Device, kernel: i64, before: i64, after: i64) {
        if let Some(known) = self.disks.get_mut(&disk.number) {
            let idle = kernel == known.kernel && after != known.seen;
            if !idle || counts_io(disk) {
                known.kernel = kernel;
                known.seen = after;
                // Read after the kernel's count, ours can only be too high and what is missing too
                // low.
                let missing = (kernel - known.kernel_first) - (after - known.seen_first);
                known.unseen = known.unseen.max(missing);
                return;
            }
        }
        self.disks.remove(&disk.number);
        if counts_io(disk) {
            let known = Disk {
                path: disk.path,
                kernel_first: kernel,
                kernel,
                seen_first: before,
                seen: after,
                unseen: 0,
            };
            self.disks.insert(disk.number, known);
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
pub fn counts_io(disk: &Device) -> bool {
    let setting = Path::new(&disk.sysfs).join("queue/iostats");
    read_text(&setting).is_none_or(|text| text != "0")
}

/// Requests that the kernel counted as finished, by device: reads, writes and discards
/// (Documentation/admin-guide/iostats.rst).
fn finished(diskstats: &str) -> HashMap<u32, i64> {
    const READS: usize = 3;
    const WRITES: usize = 7;
    const DISCARDS: usize = 14;
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let field = |i: usize| words.get(i)?.parse::<i64>().ok();
        let (major, minor) = (words.first()?.parse().ok()?, words.get(1)?.parse().ok()?);
        let ios = field(READS)? + field(WRITES)? + field(DISCARDS).unwrap_or(0);
        Some((super::devices::number(major, minor), ios))
    };
    diskstats.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_writes_and_discards_count_as_finished() {
        let line = " 254       1 vda1 8 1 64 3 40 2 320 9 0 10 12 2 0 16 1 5 6\n";
        let counts = finished(line);
        assert_eq!(counts.get(&(254 << 20 | 1)), Some(&(8 + 40 + 2)));
    }

    #[test]
    fn a_kernel_count_that_runs_ahead_is_unseen() {
        let disk = Device {
            number: 7,
            path: Symbol::new("/dev/loop0"),
            disk: 7,
            sysfs: "/nowhere".into(),
            leaf: true,
            bio_based: false,
            present: true,
            index: 1,
            demands: 1,
        };
        let mut census = Census::default();
        census.compare(&disk, 100, 0, 0);
        census.compare(&disk, 110, 8, 8);
        census.compare(&disk, 120, 19, 19);
        let found = census.disks()[0];
        assert_eq!((found.seen, found.unseen), (19, 2));
    }
}
