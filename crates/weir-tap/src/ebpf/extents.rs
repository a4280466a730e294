//! [`ExtentTables`]: the extents of virtual disks on the disks of the host, for the programs that
//! fold requests (`extents.bpf.h`).

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::attribution::{Extent, set};
use super::layout::{KNOWN_BYTES, PROCESS_BUCKETS};
use super::tables::Known;
use crate::shared::Shared;

/// Extents of a line.
const LINE_EXTENTS: usize = 7;

/// Bytes of `struct extent_line`.
const LINE_BYTES: usize = 64;

/// Lines for all disks.
const LINES: u32 = 1 << 16;

/// Numbers of sets.
const SETS: u32 = 1 << OWNERS_BITS;

/// Bits of the number of a set.
const OWNERS_BITS: u32 = 16;

/// The first sector of an extent that no request is in.
const SECTOR_MAX: u64 = (1 << (u64::BITS - OWNERS_BITS)) - 1;

/// The tables of the programs. One half of the lines is in use.
#[derive(Debug)]
pub struct ExtentTables {
    ranges: Shared,
    lines: Shared,
    in_upper_half: bool,
    owner_vms: Shared,
    processes: Shared,
    known_processes: Known,
    /// The processes in the table, each with its number.
    listed: HashMap<u32, u32>,
}

impl ExtentTables {
    /// The number of values of the table called `table`, for this number of disks, if extents are
    /// used; `None` if it is another one.
    pub fn values(table: &str, disks: u32, are_used: bool) -> Option<u32> {
        let values = match table {
            "extent_ranges" => disks,
            "extent_lines" => 2 * LINES,
            "owner_vms" => SETS,
            "processes" => PROCESS_BUCKETS,
            _ => return None,
        };
        Some(if are_used { values } else { 1 })
    }

    /// Bytes of all tables.
    pub fn bytes(disks: u32) -> u64 {
        let bytes = [
            ("extent_ranges", 8),
            ("extent_lines", LINE_BYTES),
            ("owner_vms", 8),
            ("processes", KNOWN_BYTES),
        ];
        let of = |(table, bytes): (&str, usize)| {
            let values = ExtentTables::values(table, disks, true).unwrap_or(0);
            u64::from(values) * bytes as u64
        };
        bytes.into_iter().map(of).sum()
    }

    /// The tables; `map` maps the table of that name, with values of that size in bytes and that
    /// number of values.
    ///
    /// # Errors
    /// The error of `map`.
    pub fn map<E>(
        map: &impl Fn(&str, usize, usize) -> Result<Shared, E>,
        disks: u32,
    ) -> Result<ExtentTables, E> {
        Ok(ExtentTables {
            ranges: map("extent_ranges", 8, disks as usize)?,
            lines: map("extent_lines", LINE_BYTES, 2 * LINES as usize)?,
            in_upper_half: false,
            owner_vms: map("owner_vms", 8, SETS as usize)?,
            processes: map("processes", KNOWN_BYTES, PROCESS_BUCKETS as usize)?,
            known_processes: Known::default(),
            listed: HashMap::new(),
        })
    }

    /// Removes the processes that are not among `known`, or have another number there.
    pub fn forget_processes(&mut self, known: &HashMap<u32, u32>) {
        let (table, slots) = (&self.processes, &mut self.known_processes);
        self.listed.retain(|pid, number| {
            let is_same = known.get(pid) == Some(number);
            if !is_same {
                slots.forget(table, u64::from(*pid));
            }
            is_same
        });
    }

    /// Adds the processes of `known`, each with what is known of it. The extents of their VMs have
    /// been written.
    pub fn add_processes(&mut self, known: HashMap<u32, u32>) {
        for (pid, number) in known {
            if self.listed.insert(pid, number).is_none() {
                let slots = &mut self.known_processes;
                slots.insert(&self.processes, u64::from(pid), number, 0);
            }
        }
    }

    /// Writes the numbers of the VMs of all sets.
    pub fn write_vms(&self, vms: &[u32]) {
        for (word, vm) in self.owner_vms.words().iter().zip(vms) {
            word.store(u64::from(*vm), Ordering::Relaxed);
        }
    }

    /// Replaces the extents of all disks, each with its row in the counters; returns the rows of
    /// those for which there is no room. Each processor must have been observed not to be busy
    /// since the last call.
    pub fn write(&mut self, disks: &[(u32, &[Extent])]) -> Vec<u32> {
        let half = self.lines.words().len() / 2;
        let from = if self.in_upper_half { 0 } else { half };
        let lines = &self.lines.words()[from..from + half];
        let mut ranges = vec![0; self.ranges.words().len()];
        let (mut at, mut without_room) = (0, Vec::new());
        for (row, extents) in disks {
            let words = lines_of(extents) * (LINE_EXTENTS + 1);
            let Some(own) = lines.get(at..at + words) else {
                without_room.push(*row);
                continue;
            };
            ranges[*row as usize] = match extents {
                [] => 0,
                [whole] => u64::from(whole.owners) << 32,
                extents => {
                    let number = words / (LINE_EXTENTS + 1);
                    let first = (from + at) / (LINE_EXTENTS + 1);
                    for (word, value) in own.iter().zip(words_of(extents)) {
                        word.store(value, Ordering::Relaxed);
                    }
                    (first as u64) << 32 | number as u64
                }
            };
            at += words;
        }
        for (word, range) in self.ranges.words().iter().zip(ranges) {
            word.store(range, Ordering::Release);
        }
        self.in_upper_half = !self.in_upper_half;
        without_room
    }
}

/// The number of lines of a disk; a disk with one set has none.
fn lines_of(extents: &[Extent]) -> usize {
    match extents.len() {
        0 | 1 => 0,
        more => more.div_ceil(LINE_EXTENTS),
    }
}

/// The words of the lines of these extents.
fn words_of(extents: &[Extent]) -> impl Iterator<Item = u64> {
    let word = |at: usize| match extents.get(at) {
        Some(extent) => extent.first << OWNERS_BITS | u64::from(extent.owners),
        None => SECTOR_MAX << OWNERS_BITS | u64::from(set::UNKNOWN),
    };
    let line = move |line: usize| {
        let first = line * LINE_EXTENTS;
        (first..=first + LINE_EXTENTS).map(word)
    };
    (0..lines_of(extents)).flat_map(line)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::layout::SIBLINGS;
    use super::*;

    fn extents(number: usize) -> Vec<Extent> {
        let extent = |i: usize| Extent {
            first: 100 * i as u64,
            owners: 2 + i as u16 % 3,
        };
        (0..number).map(extent).collect()
    }

    #[test]
    fn a_line_ends_with_the_beginning_of_the_next_one() {
        let words: Vec<u64> = words_of(&extents(9)).collect();
        assert_eq!(words.len(), 16);
        let [first, second] = [&words[..8], &words[8..]];
        assert_eq!(first[7] >> 16, 700);
        assert_eq!(first[7], second[0]);
        assert_eq!((second[1] >> 16, second[1] & 0xffff), (800, 4));
        assert!(second[2..].iter().all(|w| *w == SECTOR_MAX << 16));
        assert_eq!(words_of(&extents(1)).count(), 0);
    }

    /// Four disks, and two lines in each half.
    fn tables() -> ExtentTables {
        let shared = |words: usize| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(words as u64 * 8).unwrap();
            Shared::map(file.as_fd(), 8, words).unwrap()
        };
        ExtentTables {
            ranges: shared(4),
            lines: shared(4 * 8),
            in_upper_half: false,
            owner_vms: shared(1),
            processes: shared(2 * KNOWN_BYTES / 8),
            known_processes: Known::default(),
            listed: HashMap::new(),
        }
    }

    #[test]
    fn disks_without_room_are_reported_and_have_no_range() {
        let mut tables = tables();
        let (small, large, whole) = (extents(7), extents(15), extents(1));
        let disks = [(1, &large[..]), (2, &small[..]), (3, &whole[..])];
        let ranges = |tables: &ExtentTables| -> Vec<u64> {
            let words = tables.ranges.words().iter();
            words.map(|w| w.load(Ordering::Relaxed)).collect()
        };
        assert_eq!(tables.write(&disks), [1]);
        assert_eq!(ranges(&tables), [0, 0, 2 << 32 | 1, 2 << 32]);
        // The other half, from its beginning.
        assert!(tables.write(&disks[1..]).is_empty());
        assert_eq!(ranges(&tables), [0, 0, 1, 2 << 32]);
    }

    #[test]
    fn a_process_is_in_the_table_with_its_present_number_only() {
        let mut tables = tables();
        let numbers = |tables: &ExtentTables| {
            let mut numbers: Vec<(u64, u64)> = Vec::new();
            for bucket in tables.processes.words().chunks(KNOWN_BYTES / 8) {
                for way in 0..SIBLINGS {
                    let key = bucket[way].load(Ordering::Relaxed);
                    let index = bucket[SIBLINGS + way / 2].load(Ordering::Relaxed);
                    let index = index >> (32 * (way % 2)) & 0xffff_ffff;
                    numbers.extend((key != 0).then_some((key, index)));
                }
            }
            numbers.sort_unstable();
            numbers
        };
        let known = |all: &[(u32, u32)]| HashMap::from_iter(all.iter().copied());
        let mut write = |all: &[(u32, u32)]| {
            tables.forget_processes(&known(all));
            tables.add_processes(known(all));
            numbers(&tables)
        };
        assert_eq!(write(&[(7, 1), (9, 2)]), [(7, 1), (9, 2)]);
        assert_eq!(write(&[(7, 3), (8, 1)]), [(7, 3), (8, 1)]);
        assert_eq!(write(&[]), []);
    }
}
