//! [`CompletenessCheck`]: the check against the kernel's own counters (`/proc/diskstats`), which
//! counts the requests whose completion no program received, by cause.
//!
//! The kernel increments its counters after the tracepoint of the completion, so the programs'
//! count is ahead of them, never behind, unless a completion was not received.

mod sectors;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use weir_model::Symbol;

pub use self::sectors::SectorCompleteness;
use self::sectors::{KernelSectors, ProgramSectors, SectorCheck};
use super::devices::{Device, read_text};
use super::layout::count;
use crate::EventCount;

/// The counts of both sides since the tap was opened, per disk.
#[derive(Debug, Default)]
pub struct CompletenessCheck {
    disks: HashMap<u32, Disk>,
    /// Those of devices without requests.
    sectors: SectorCheck,
    /// Runs of the completion's program that the kernel skipped, so far.
    misses: u64,
    /// Skipped runs to which no request has been assigned yet: the kernel's counters may be behind.
    misses_open: i64,
}

/// Completeness of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completeness {
    /// The disk.
    pub path: Symbol,
    /// Finished requests whose completion the programs received.
    pub seen: i64,
    /// Finished requests that only the kernel's own counters include.
    pub unseen: Unseen,
}

/// Finished requests whose completion was not received, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// The program was already running on that processor, and the kernel does not nest it.
    pub recursion: i64,
    /// The kernel did not run the program, and did not count the omission. Some kernels do so while
    /// certain threads are current.
    pub not_run: i64,
    /// One of these: several disks were affected at a time, and the kernel does not count per disk.
    pub unknown: i64,
}

#[derive(Debug)]
struct Disk {
    path: Symbol,
    kernel_first: i64,
    kernel: i64,
    seen_first: i64,
    seen: i64,
    unseen: Unseen,
}

impl Unseen {
    /// The causes by name, each with its count.
    pub fn by_cause(&self) -> [(&'static str, i64); 3] {
        [
            ("recursion", self.recursion),
            ("not_run", self.not_run),
            ("unknown", self.unknown),
        ]
    }

    /// The total.
    pub fn total(&self) -> i64 {
        self.recursion + self.not_run + self.unknown
    }
}

impl Completeness {
    /// Finished requests whose completion was not received, of all causes.
    pub fn unseen(&self) -> i64 {
        self.unseen.total()
    }
}

impl CompletenessCheck {
    /// Updates the comparison. `count` returns a counter of the programs, by its position in
    /// [`count`]; `misses` is how often the kernel counted that the completion's program did not
    /// run because it was already running.
    ///
    /// A disk whose statistics are disabled (`queue/iostats`) cannot be checked and is skipped
    /// until they are enabled again.
    pub fn take(&mut self, disks: &[&Device], count: &dyn Fn(&Device, usize) -> i64, misses: u64) {
        let seen = |d: &Device| count(d, count::SEEN);
        let sectors = |d: &Device| ProgramSectors {
            submitted: count(d, count::SECTORS_SUBMITTED),
            seen: count(d, count::SECTORS_SEEN),
        };
        let disks = disks.iter().filter(|d| d.index != 0);
        // The programs' count is read first: a request that ends in between is missing from it in
        // the first comparison only.
        let disks: Vec<_> = disks.map(|d| (d, seen(d), sectors(d))).collect();
        let Ok(text) = fs::read_to_string("/proc/diskstats") else {
            self.disks.clear();
            self.sectors = SectorCheck::default();
            return;
        };
        let kernel = finished(&text);
        let mut found = Vec::new();
        for (disk, seen_before, sectors_before) in disks {
            match kernel.get(&disk.number) {
                Some(kernel) if disk.bio_based => {
                    let now = || sectors(disk);
                    self.sectors
                        .compare(disk, kernel.sectors, sectors_before, &now);
                }
                Some(kernel) => {
                    let more = self.compare(disk, kernel.ios, seen_before, seen(disk));
                    found.extend((more > 0).then_some((disk.number, more)));
                }
                None => {
                    self.disks.remove(&disk.number);
                    self.sectors.remove(disk.number);
                }
            }
        }
        self.attribute(&found, misses);
    }

    /// Assigns the requests that were found on each disk to their causes.
    fn attribute(&mut self, found: &[(u32, i64)], misses: u64) {
        self.misses_open += misses.saturating_sub(self.misses) as i64;
        self.misses = misses;
        let all: i64 = found.iter().map(|(_, more)| more).sum();
        let by_recursion = all.min(self.misses_open);
        self.misses_open -= by_recursion;
        for (number, more) in found {
            let disk = self.disks.get_mut(number).expect("it was compared");
            let unseen = &mut disk.unseen;
            match by_recursion {
                0 => unseen.not_run += more,
                n if n == all => unseen.recursion += more,
                n if found.len() == 1 => {
                    unseen.recursion += n;
                    unseen.not_run += more - n;
                }
                _ => unseen.unknown += more,
            }
        }
    }

    /// The number of additional unseen requests of a disk.
    fn compare(&mut self, disk: &Device, kernel: i64, before: i64, after: i64) -> i64 {
        if let Some(known) = self.disks.get_mut(&disk.number) {
            let idle = kernel == known.kernel && after != known.seen;
            if !idle || counts_io(disk) {
                known.kernel = kernel;
                known.seen = after;
                // Read after the kernel's count, the programs' can only be too high, and the
                // difference too low.
                let missing = (kernel - known.kernel_first) - (after - known.seen_first);
                return (missing - known.unseen.total()).max(0);
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
                unseen: Unseen::default(),
            };
            self.disks.insert(disk.number, known);
        }
        0
    }

    /// Skipped runs of the completion's program to which no request has been assigned.
    pub fn misses_open(&self) -> i64 {
        self.misses_open
    }

    /// The figures of all disks, as a tap reports them.
    pub fn counts(&self) -> Vec<EventCount> {
        let mut counts = Vec::new();
        for disk in self.disks() {
            let device = Some(disk.path);
            let of = |counter, cause, total| EventCount {
                device,
                ..EventCount::of(counter, cause, total)
            };
            counts.push(of("seen", None, disk.seen));
            let causes = disk.unseen.by_cause().into_iter();
            let causes = causes.filter(|(_, total)| *total > 0);
            counts.extend(causes.map(|(cause, total)| of("unseen", Some(cause), total)));
        }
        for device in self.devices() {
            let of = |counter, total| EventCount {
                device: Some(device.path),
                ..EventCount::of(counter, None, total)
            };
            counts.push(of("sectors_seen", device.seen));
            counts.push(of("sectors_unseen", device.unseen));
        }
        counts
    }

    /// The devices without requests that had any activity, by path.
    pub fn devices(&self) -> Vec<SectorCompleteness> {
        self.sectors.devices()
    }

    /// The disks with any activity, by path.
    pub fn disks(&self) -> Vec<Completeness> {
        let of = |d: &Disk| Completeness {
            path: d.path,
            seen: d.seen - d.seen_first,
            unseen: d.unseen,
        };
        let disks = self.disks.values().map(of);
        let mut disks: Vec<Completeness> = disks.filter(|d| d.seen + d.unseen() > 0).collect();
        disks.sort_by_key(|d| d.path.as_str());
        disks
    }
}

/// True if the disk's queue maintains statistics.
pub fn counts_io(disk: &Device) -> bool {
    let setting = Path::new(&disk.sysfs).join("queue/iostats");
    read_text(&setting).is_none_or(|text| text != "0")
}

/// The kernel's counters of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCounts {
    /// Finished reads, writes and discards.
    pub ios: i64,
    /// The sectors of reads and writes.
    pub sectors: KernelSectors,
}

/// What the kernel counted, by device (Documentation/admin-guide/iostats.rst).
pub fn finished(diskstats: &str) -> HashMap<u32, KernelCounts> {
    const READS: usize = 3;
    const WRITES: usize = 7;
    const IN_FLIGHT: usize = 11;
    const DISCARDS: usize = 14;
    /// Behind the number of reads, or writes.
    const SECTORS: usize = 2;
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let field = |i: usize| words.get(i)?.parse::<i64>().ok();
        let (major, minor) = (words.first()?.parse().ok()?, words.get(1)?.parse().ok()?);
        let counts = KernelCounts {
            ios: field(READS)? + field(WRITES)? + field(DISCARDS).unwrap_or(0),
            sectors: KernelSectors {
                sectors: field(READS + SECTORS)? + field(WRITES + SECTORS)?,
                in_flight: field(IN_FLIGHT)?,
            },
        };
        Some((super::devices::number(major, minor), counts))
    };
    diskstats.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_line_are_counted() {
        let line = " 254       1 vda1 8 1 64 3 40 2 320 9 3 10 12 2 0 16 1 5 6\n";
        let counts = finished(line);
        let expected = KernelCounts {
            ios: 8 + 40 + 2,
            sectors: KernelSectors {
                sectors: 64 + 320,
                in_flight: 3,
            },
        };
        assert_eq!(counts.get(&(254 << 20 | 1)), Some(&expected));
    }

    pub fn disk(number: u32) -> Device {
        Device {
            number,
            path: Symbol::new(&format!("/dev/loop{number}")),
            disk: number,
            sysfs: "/nowhere".into(),
            leaf: true,
            bio_based: false,
            present: true,
            index: 1,
            demands: 1,
        }
    }

    /// A census of two disks. Each item has, per disk, the increase of the kernel's count beyond
    /// the programs', and the number of misses that the kernel counted.
    fn completeness(looks: &[([i64; 2], u64)]) -> Vec<Unseen> {
        let disks = [disk(7), disk(8)];
        let mut completeness = CompletenessCheck::default();
        for disk in &disks {
            completeness.compare(disk, 100, 0, 0);
        }
        let (mut finished, mut ahead, mut misses) = (0, [0; 2], 0);
        for (more, missed) in looks {
            finished += 50;
            misses += missed;
            let mut found = Vec::new();
            for (i, disk) in disks.iter().enumerate() {
                ahead[i] += more[i];
                let kernel = 100 + finished + ahead[i];
                let more = completeness.compare(disk, kernel, finished, finished);
                found.extend((more > 0).then_some((disk.number, more)));
            }
            completeness.attribute(&found, misses);
        }
        let found = completeness.disks();
        assert!(found.iter().all(|disk| disk.seen == finished));
        found.iter().map(|disk| disk.unseen).collect()
    }

    #[test]
    fn a_kernel_count_that_runs_ahead_is_unseen() {
        let mut completeness = CompletenessCheck::default();
        let disk = disk(7);
        completeness.compare(&disk, 100, 0, 0);
        let found = completeness.compare(&disk, 110, 8, 8);
        completeness.attribute(&[(7, found)], 0);
        // Some that were in flight have been received.
        assert_eq!(completeness.compare(&disk, 120, 19, 19), 0);
        let found = completeness.disks()[0];
        assert_eq!((found.seen, found.unseen()), (19, 2));
    }

    #[test]
    fn the_cause_of_an_unseen_completion_is_what_the_kernel_counts() {
        let of = |recursion, not_run, unknown| Unseen {
            recursion,
            not_run,
            unknown,
        };
        // Comparisons, and the unseen requests after them.
        type Case<'a> = (&'a [([i64; 2], u64)], [Unseen; 2]);
        let cases: &[Case<'_>] = &[
            (&[([3, 0], 0), ([0, 2], 0)], [of(0, 3, 0), of(0, 2, 0)]),
            (&[([3, 1], 4)], [of(3, 0, 0), of(1, 0, 0)]),
            // The skipped run is counted before the request is.
            (&[([0, 0], 2), ([2, 0], 0)], [of(2, 0, 0), of(0, 0, 0)]),
            (&[([5, 0], 2)], [of(2, 3, 0), of(0, 0, 0)]),
            (&[([5, 1], 2)], [of(0, 0, 5), of(0, 0, 1)]),
            (&[([5, 1], 2), ([0, 4], 0)], [of(0, 0, 5), of(0, 4, 1)]),
        ];
        for (looks, expected) in cases {
            assert_eq!(completeness(looks), expected, "{looks:?}");
        }
    }
}
