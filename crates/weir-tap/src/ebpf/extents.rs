//! [`ExtentTables`]: the extents of virtual disks on the disks of the host, for the programs that
//! fold requests (`extents.bpf.h`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Parts for all disks: a disk has as many as it has lines, rounded up to a power of two.
const PARTS: u32 = 2 * LINES;

/// Positions in the word of a disk, and in that of a part, as in `extents.h`.
mod range {
    pub const LOG_PARTS: u32 = 6;
    pub const LINE: u32 = 11;
    pub const PART: u32 = 32;
    pub const LINES: u64 = 1 << 63;
    pub const PART_COUNT: u32 = 32;
}

/// Numbers of sets.
const SETS: u32 = 1 << OWNERS_BITS;

/// Bits of the number of a set.
const OWNERS_BITS: u32 = 16;

/// The first sector of an extent that no request is in.
const SECTOR_MAX: u64 = (1 << (u64::BITS - OWNERS_BITS)) - 1;

/// The tables of the programs. One half of the lines and parts is in use.
#[derive(Debug)]
pub struct ExtentTables {
    ranges: Shared,
    parts: Shared,
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
            "extent_parts" => 2 * PARTS,
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
            ("extent_parts", 8),
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
            parts: map("extent_parts", 8, 2 * PARTS as usize)?,
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
    pub fn add_processes(&mut self, known: impl IntoIterator<Item = (u32, u32)>) {
        for (pid, number) in known {
            if self.listed.contains_key(&pid) {
                continue;
            }
            let (slots, table) = (&mut self.known_processes, &self.processes);
            if slots.insert(table, u64::from(pid), number, 0) {
                self.listed.insert(pid, number);
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
        let from = |table: &Shared| {
            let half = table.words().len() / 2;
            (if self.in_upper_half { 0 } else { half }, half)
        };
        let (line_words, half) = from(&self.lines);
        let (first_part, _) = from(&self.parts);
        let lines = &self.lines.words()[line_words..][..half];
        let mut ranges = vec![0; self.ranges.words().len()];
        let (mut at, mut part_at, mut without_room) = (0, first_part, Vec::new());
        for (row, extents) in disks {
            let words = lines_of(extents) * (LINE_EXTENTS + 1);
            let Some(own) = lines.get(at..at + words) else {
                without_room.push(*row);
                continue;
            };
            ranges[*row as usize] = match extents {
                [] => u64::from(set::UNKNOWN),
                [whole] => u64::from(whole.owners),
                extents => {
                    store(own, words_of(extents));
                    let division = Division::of(extents);
                    let parts = &self.parts.words()[part_at..][..1 << division.log_parts];
                    store(parts, division.parts(extents));
                    let first_line = (line_words + at) / (LINE_EXTENTS + 1);
                    let range = division.range(first_line as u64, part_at as u64);
                    part_at += parts.len();
                    range
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

fn store(words: &[AtomicU64], values: impl Iterator<Item = u64>) {
    for (word, value) in words.iter().zip(values) {
        word.store(value, Ordering::Relaxed);
    }
}

/// The equal parts into which a disk is divided.
#[derive(Clone, Copy, Debug)]
struct Division {
    /// log2 of the sectors of a part.
    shift: u32,
    /// log2 of the number of parts.
    log_parts: u32,
}

impl Division {
    fn of(extents: &[Extent]) -> Division {
        let log_parts = lines_of(extents).next_power_of_two().ilog2();
        let last = extents.last().map_or(0, |extent| extent.first);
        // The last extent begins in one of the parts.
        let bits = u64::BITS - last.leading_zeros();
        Division {
            shift: bits.saturating_sub(log_parts),
            log_parts,
        }
    }

    fn range(self, first_line: u64, first_part: u64) -> u64 {
        range::LINES
            | first_part << range::PART
            | first_line << range::LINE
            | u64::from(self.log_parts) << range::LOG_PARTS
            | u64::from(self.shift)
    }

    /// The word of each part.
    fn parts(self, extents: &[Extent]) -> impl Iterator<Item = u64> {
        let line_of = |sector: u64| {
            let extents_before = extents.partition_point(|extent| extent.first <= sector);
            ((extents_before - 1) / LINE_EXTENTS) as u64
        };
        (0..1u64 << self.log_parts).map(move |part| {
            let first = line_of(part << self.shift);
            let last = line_of(((part + 1) << self.shift) - 1);
            (last - first + 1) << range::PART_COUNT | first
        })
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

    fn anonymous(words: usize) -> Shared {
        let file = tempfile::tempfile().unwrap();
        file.set_len(words as u64 * 8).unwrap();
        Shared::map(file.as_fd(), 8, words).unwrap()
    }

    /// Four disks, and two lines in each half.
    fn tables() -> ExtentTables {
        let shared = anonymous;
        ExtentTables {
            ranges: shared(4),
            parts: shared(2 * 4),
            lines: shared(4 * 8),
            in_upper_half: false,
            owner_vms: shared(1),
            processes: shared(2 * KNOWN_BYTES / 8),
            known_processes: Known::default(),
            listed: HashMap::new(),
        }
    }

    /// The set at a sector, as the programs find it.
    fn find(tables: &ExtentTables, row: usize, sector: u64) -> u64 {
        let word = |table: &Shared, at: u64| table.words()[at as usize].load(Ordering::Relaxed);
        let range = word(&tables.ranges, row as u64);
        if range & range::LINES == 0 {
            return range;
        }
        let last = (1u64 << (range >> range::LOG_PARTS & 31)) - 1;
        let part = (sector >> (range & 63)).min(last);
        let part = word(&tables.parts, (range >> range::PART & 0x7fff_ffff) + part);
        let first = (range >> range::LINE & ((1 << (range::PART - range::LINE)) - 1))
            + (part & 0xffff_ffff);
        let lines = first..first + (part >> range::PART_COUNT);
        let extent = |line: u64, at: u64| word(&tables.lines, line * 8 + at);
        let line = lines
            .rev()
            .find(|line| extent(*line, 0) >> OWNERS_BITS <= sector);
        let line = line.expect("the lines of a part have its sectors");
        let at = (0..7)
            .rev()
            .find(|at| extent(line, *at) >> OWNERS_BITS <= sector);
        extent(line, at.expect("the line begins by then")) & 0xffff
    }

    #[test]
    fn disks_without_room_are_reported_and_are_unknown() {
        let mut tables = tables();
        let (small, large, whole) = (extents(7), extents(15), extents(1));
        let disks = [(1, &large[..]), (2, &small[..]), (3, &whole[..])];
        let found = |tables: &ExtentTables| [1, 2, 3].map(|row| find(tables, row, 150));
        assert_eq!(tables.write(&disks), [1]);
        assert_eq!(found(&tables), [0, 3, 2]);
        // The other half, from its beginning.
        assert!(tables.write(&disks[1..]).is_empty());
        assert_eq!(found(&tables), [0, 3, 2]);
    }

    #[test]
    fn each_sector_is_in_the_lines_of_its_part() {
        let mut random = fastrand::Rng::with_seed(3);
        for number in [2, 7, 8, 9, 50, 300, 1000] {
            let shared = anonymous;
            let mut tables = ExtentTables {
                lines: shared(2 * 256 * 8),
                parts: shared(2 * 256),
                ..tables()
            };
            let mut first = 0;
            let mut extents = Vec::new();
            for i in 0..number {
                extents.push(Extent {
                    first,
                    owners: 2 + i % 5,
                });
                // Many short ones, and a few that span many parts.
                let most = if random.u8(..20) == 0 { 1 << 30 } else { 50 };
                first += random.u64(1..=most);
            }
            assert!(tables.write(&[(1, &extents)]).is_empty());
            for (extent, sector) in extents
                .iter()
                .flat_map(|e| [(e, e.first), (e, e.first + 1)])
            {
                let at = extents.partition_point(|e| e.first <= sector) - 1;
                let expected = u64::from(extents[at].owners);
                assert_eq!(find(&tables, 1, sector), expected, "{number} {extent:?}");
            }
            let last = extents.last().unwrap();
            assert_eq!(
                find(&tables, 1, last.first * 3 + 99),
                u64::from(last.owners)
            );
        }
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
