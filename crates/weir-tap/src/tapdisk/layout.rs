//! The layout of the memory that a tapdisk shares with a consumer: a header, and one ring of
//! fixed-size records for each queue or connection. Numbers are native-endian
//! words of 8 bytes: both sides run on one host.
//!
//! | from word | content | writer |
//! | --- | --- | --- |
//! | 0 | number of rings ever used, then zeros | tapdisk |
//! | [`DROPS_WORD`] | records lost because the ring was full, by disk | tapdisk |
//! | [`RINGS_WORD`] | a header of [`RING_HEADER_WORDS`] words for each ring, see [`ring_header`] | tapdisk; one cache line: consumer |
//! | [`Layout::ring`] | the rings | tapdisk |
//! | [`Layout::group_windows`] | the windows of groups; without groups the memory ends here | consumer |
//! | [`Layout::group_cpus`] | the state of the groups of each ring | both |
//! | [`Layout::group_cells`] | the groups of each ring | both |
//! | [`Layout::group_blocks`] | the bins of the groups of each ring | both |
//!
//! This is version 2 of [`VERSION`], which is incremented with every change of a word that a
//! consumer without groups reads. The records of version 1 lack the last word. A tapdisk writes the
//! latest version that the consumer reads, and a consumer reads all. The tables of groups are those
//! of the kernel programs (`fold.h`), with a ring for a processor.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use weir_model::{EventKind, Op, SECTOR_BYTES};

use crate::ebpf::fold::layout::{BLOCK_BYTES, CALLS, CPU_BYTES, FOLDS, WINDOW_BYTES, cell_bytes};

/// The version of everything in this file.
pub const VERSION: u32 = 2;

/// Maximum number of disks of one tapdisk.
pub const DISKS_MAX: usize = 1024;

/// Maximum number of rings (queues and connections) of one tapdisk at a time.
pub const RINGS_MAX: usize = 1024;

/// Words of a record.
pub const RECORD_WORDS: usize = 9;

/// Words of a record of each version, from version 1 on.
const RECORD_WORDS_OF: [usize; VERSION as usize] = [8, RECORD_WORDS];

/// Minimum and maximum number of records of one ring.
pub const RING_RECORDS: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 18;

/// The word with the number of rings ever used: later rings need not be read.
pub const RINGS_USED_WORD: usize = 0;

/// Start of the counts of lost records.
pub const DROPS_WORD: usize = 64;

/// Start of the rings' headers.
pub const RINGS_WORD: usize = DROPS_WORD + DISKS_MAX;

/// Words of a ring's header: two cache lines, since it has two writers.
pub const RING_HEADER_WORDS: usize = 16;

/// The words of a ring's header.
pub mod ring_header {
    /// Total number of records written.
    pub const TAIL: usize = 0;
    /// 1 from before the first timestamp of a round until its records are written.
    pub const BUSY: usize = 1;
    /// The watermark: every record up to this time is written, CLOCK_MONOTONIC in ns.
    pub const WATERMARK_NS: usize = 2;
    /// From this time on everything is recorded: earlier requests have no record `Q`.
    pub const SINCE_NS: usize = 3;
    /// Events that were not recorded because the consumer does not request them.
    pub const AVOIDED: usize = 4;
    /// Total number of records read: the consumer's only word of a ring. The tapdisk only compares
    /// it.
    pub const HEAD: usize = 8;
}

/// Minimum number of words per page.
const PAGE_WORDS: usize = 512;

/// Cells of the groups of one ring: its requests are of one disk, so it has few groups.
const GROUP_CELLS: u32 = 64;

/// Minimum and maximum number of blocks of bins of the groups of one ring.
const GROUP_BLOCKS: std::ops::RangeInclusive<usize> = 1 << 6..=1 << 12;

/// The sizes of the tables of groups of each ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupTables {
    /// Cells, a power of two.
    pub cells: u32,
    /// Blocks, a power of two.
    pub blocks: u32,
    /// Moments in each cell.
    pub moments: u32,
}

impl GroupTables {
    /// The tables for groups with this number of moments, and with bins or without; bins have about
    /// `bytes` for each ring.
    pub fn new(moments: u32, has_bins: bool, bytes: usize) -> GroupTables {
        let (least, most) = (*GROUP_BLOCKS.start(), *GROUP_BLOCKS.end());
        let blocks = (bytes / BLOCK_BYTES).clamp(least, most);
        GroupTables {
            cells: GROUP_CELLS,
            blocks: if has_bins { 1 << blocks.ilog2() } else { 1 },
            moments,
        }
    }

    /// Whether tables may have these sizes.
    pub fn is_valid(&self) -> bool {
        self.cells.is_power_of_two()
            && self.cells <= 1 << 10
            && self.blocks.is_power_of_two()
            && self.blocks <= 1 << 14
            && self.moments as usize <= CALLS
    }

    /// Words of the cells of a ring.
    fn cell_words(&self) -> usize {
        self.cells as usize * cell_bytes(self.moments as usize) / 8
    }

    /// Words of the blocks of a ring.
    fn block_words(&self) -> usize {
        self.blocks as usize * BLOCK_BYTES / 8
    }
}

/// The sizes of one shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    version: u32,
    ring_records: u64,
    groups: Option<GroupTables>,
}

impl Layout {
    /// With rings of this many records, rounded to a power of two in [`RING_RECORDS`].
    pub fn new(ring_records: u64) -> Layout {
        let (least, most) = (*RING_RECORDS.start(), *RING_RECORDS.end());
        let bounded = ring_records.clamp(least, most);
        Layout {
            ring_records: 1 << bounded.ilog2(),
            version: VERSION,
            groups: None,
        }
    }

    /// With the records of this version; `None` for a version that is not known.
    pub fn of_version(self, version: u32) -> Option<Layout> {
        (1..=VERSION)
            .contains(&version)
            .then_some(Layout { version, ..self })
    }

    /// The version.
    pub fn version(self) -> u32 {
        self.version
    }

    /// With these tables of groups as well.
    pub fn with_groups(self, groups: Option<GroupTables>) -> Layout {
        Layout { groups, ..self }
    }

    /// The tables of groups.
    pub fn groups(self) -> Option<GroupTables> {
        self.groups
    }

    /// Words of a record.
    pub fn record_words(self) -> usize {
        RECORD_WORDS_OF[self.version as usize - 1]
    }

    /// Records of a ring.
    pub fn ring_records(self) -> u64 {
        self.ring_records
    }

    /// The first word of a ring's header.
    pub fn ring_header(self, index: usize) -> usize {
        RINGS_WORD + index * RING_HEADER_WORDS
    }

    /// The first word of a ring, aligned to a page.
    pub fn ring(self, index: usize) -> usize {
        let header = (RINGS_WORD + RINGS_MAX * RING_HEADER_WORDS).next_multiple_of(PAGE_WORDS);
        header + index * self.ring_words()
    }

    /// Words of a ring.
    pub fn ring_words(self) -> usize {
        self.ring_records as usize * self.record_words()
    }

    /// Words of the whole memory.
    pub fn words(self) -> usize {
        match self.groups {
            Some(groups) => self.group_blocks_of_all(groups).end,
            None => self.ring(RINGS_MAX),
        }
    }

    /// The words of the windows, which begin with a page, as the other tables do.
    pub fn group_windows(self) -> Range<usize> {
        part_after(self.ring(RINGS_MAX), FOLDS * WINDOW_BYTES / 8)
    }

    /// The words of the states of all rings.
    pub fn group_cpus(self) -> Range<usize> {
        part_after(self.group_windows().end, RINGS_MAX * CPU_BYTES / 8)
    }

    /// The words of the cells of all rings.
    pub fn group_cells_of_all(self, groups: GroupTables) -> Range<usize> {
        part_after(self.group_cpus().end, RINGS_MAX * groups.cell_words())
    }

    /// The words of the blocks of all rings.
    pub fn group_blocks_of_all(self, groups: GroupTables) -> Range<usize> {
        let cells = self.group_cells_of_all(groups);
        part_after(cells.end, RINGS_MAX * groups.block_words())
    }

    /// The words of the cells of a ring.
    pub fn group_cells(self, groups: GroupTables, index: usize) -> Range<usize> {
        let (from, words) = (self.group_cells_of_all(groups).start, groups.cell_words());
        from + index * words..from + (index + 1) * words
    }

    /// The words of the blocks of a ring.
    pub fn group_blocks(self, groups: GroupTables, index: usize) -> Range<usize> {
        let (from, words) = (self.group_blocks_of_all(groups).start, groups.block_words());
        from + index * words..from + (index + 1) * words
    }
}

/// The range of `words` words from the first page that begins at `end` or later.
fn part_after(end: usize, words: usize) -> Range<usize> {
    let start = end.next_multiple_of(PAGE_WORDS);
    start..start + words
}

/// A complete event: it can be decoded without any other.
///
/// | word | content |
/// | --- | --- |
/// | 0 | bits 0-3: kind (1 `Q`, 2 `R`, 3 `E`, 4 `N`); 4: FUA; 5-6: folds with it; 8-15: op |
/// | | bits 16-31: errno; 32-47: disk; 48-63: queue |
/// | 1 | id |
/// | 2 | time of the event, CLOCK_MONOTONIC in ns |
/// | 3 | first sector; all ones without one |
/// | 4 | length in sectors in bits 0-31, in flight in bits 32-63 |
/// | 5 | time at which the request was received |
/// | 6 | time at which it was submitted; 0 if it was not |
/// | 7 | seek in sectors, signed; the minimum if unknown |
/// | 8 | time since the disk's previous request; all ones if unknown |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Kind of event.
    pub kind: EventKind,
    /// Operation of the request.
    pub op: Op,
    /// Forced unit access: the data must be on stable storage at completion.
    pub fua: bool,
    /// The folds of which a group contains it, a bit each: it is no row of their demands.
    pub folded: u8,
    /// The errno of the failure; 0 if it succeeded.
    pub errno: u16,
    /// The disk, by [`super::words::DiskWord::number`].
    pub disk: u16,
    /// The queue or connection of the request.
    pub queue: u16,
    /// Pairs a completion with its request; counted from 1, by disk.
    pub id: u64,
    /// Time of the event, ns of CLOCK_MONOTONIC.
    pub ts_ns: u64,
    /// First sector of 512 bytes; `None` for a flush.
    pub sector: Option<u64>,
    /// Length in sectors of 512 bytes.
    pub sectors: u32,
    /// Requests of its disk in flight when it was received, including it.
    pub in_flight: u32,
    /// Time at which the request was received, on the same clock.
    pub taken_ns: u64,
    /// Time of submission; `None` for a request that is not submitted yet, or never was.
    pub submitted_ns: Option<u64>,
    /// First sector minus last sector of the disk's previous request; 1 is sequential.
    pub seek_sectors: Option<i64>,
    /// From the receipt of the disk's previous request to its receipt, ns.
    pub interarrival_ns: Option<u64>,
}

/// The last word of a record without a time since the previous request, and that of version 1.
pub(super) const NO_INTERARRIVAL: u64 = u64::MAX;
const NO_SECTOR: u64 = u64::MAX;
const NO_SEEK: i64 = i64::MIN;
const FUA_BIT: u64 = 1 << 4;
const FOLDED_SHIFT: u32 = 5;
const FOLDED_BITS: u64 = (1 << FOLDS) - 1;

/// The number of sectors for this many bytes; lengths that no request can have are limited to the
/// maximum.
pub fn sectors_of(bytes: u64) -> u32 {
    let sectors = bytes.div_ceil(SECTOR_BYTES as u64);
    u32::try_from(sectors).unwrap_or(u32::MAX)
}

impl Record {
    /// Encodes it for a ring.
    pub fn encode(&self) -> [u64; RECORD_WORDS] {
        let kind = self.kind as u64 + 1 + if self.fua { FUA_BIT } else { 0 };
        let kind = kind | (u64::from(self.folded) & FOLDED_BITS) << FOLDED_SHIFT;
        let op = self.op as u64;
        let [errno, disk, queue] = [self.errno, self.disk, self.queue].map(u64::from);
        [
            kind | op << 8 | errno << 16 | disk << 32 | queue << 48,
            self.id,
            self.ts_ns,
            self.sector.unwrap_or(NO_SECTOR),
            u64::from(self.sectors) | u64::from(self.in_flight) << 32,
            self.taken_ns,
            self.submitted_ns.unwrap_or(0),
            self.seek_sectors.unwrap_or(NO_SEEK) as u64,
            self.interarrival_ns.unwrap_or(NO_INTERARRIVAL),
        ]
    }

    /// Decodes it from a ring; `None` for invalid words.
    pub fn decode(words: &[u64; RECORD_WORDS]) -> Option<Record> {
        let [
            first,
            id,
            ts_ns,
            sector,
            lengths,
            taken_ns,
            submitted_ns,
            seek,
            interarrival_ns,
        ] = *words;
        let kind = (first & 15).checked_sub(1)?;
        let kind = *EventKind::ALL.get(kind as usize)?;
        let op = *Op::ALL.get((first >> 8 & 255) as usize)?;
        Some(Record {
            kind,
            op,
            fua: first & FUA_BIT != 0,
            folded: (first >> FOLDED_SHIFT & FOLDED_BITS) as u8,
            errno: (first >> 16) as u16,
            disk: (first >> 32) as u16,
            queue: (first >> 48) as u16,
            id,
            ts_ns,
            sector: (sector != NO_SECTOR).then_some(sector),
            sectors: lengths as u32,
            in_flight: (lengths >> 32) as u32,
            taken_ns,
            submitted_ns: (submitted_ns != 0).then_some(submitted_ns),
            seek_sectors: (seek as i64 != NO_SEEK).then_some(seek as i64),
            interarrival_ns: (interarrival_ns != NO_INTERARRIVAL).then_some(interarrival_ns),
        })
    }

    /// First sector, as in queries.
    pub fn sector(&self) -> Option<i64> {
        let sector = self.sector?;
        Some(i64::try_from(sector).unwrap_or(i64::MAX))
    }

    /// True for the completion of a request.
    pub fn is_end(&self) -> bool {
        self.kind != EventKind::Request
    }

    /// From receipt to submission, ns: known at the completion of a request.
    pub fn wait_ns(&self) -> Option<i64> {
        let submitted = self.submitted_ns.filter(|_| self.is_end())?;
        Some(span(self.taken_ns, submitted))
    }

    /// From submission to completion, ns.
    pub fn service_ns(&self) -> Option<i64> {
        let submitted = self.submitted_ns.filter(|_| self.is_end())?;
        Some(span(submitted, self.ts_ns))
    }

    /// From receipt to completion, ns.
    pub fn latency_ns(&self) -> Option<i64> {
        self.is_end().then(|| span(self.taken_ns, self.ts_ns))
    }
}

fn span(from: u64, to: u64) -> i64 {
    i64::try_from(to.saturating_sub(from)).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A read that was received at this time.
    pub fn request(ts_ns: u64) -> Record {
        Record {
            kind: EventKind::Request,
            op: Op::Read,
            fua: false,
            folded: 0,
            errno: 0,
            disk: 0,
            queue: 0,
            id: 1,
            ts_ns,
            sector: Some(0),
            sectors: 8,
            in_flight: 1,
            taken_ns: ts_ns,
            submitted_ns: None,
            seek_sectors: None,
            interarrival_ns: None,
        }
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let names = (
            0..4usize,
            0..5usize,
            any::<bool>(),
            0..4u8,
            any::<[u16; 3]>(),
        );
        let times = (any::<[u64; 2]>(), prop::option::of(1u64..));
        let place = (prop::option::of(0..u64::MAX), any::<[u32; 2]>());
        let previous = (
            prop::option::of(i64::MIN + 1..),
            prop::option::of(0..u64::MAX),
        );
        let all = (names, times, place, previous, any::<u64>());
        all.prop_map(|(names, times, place, (seek, interarrival_ns), id)| {
            let (kind, op, fua, folded, [errno, disk, queue]) = names;
            let ([ts_ns, taken_ns], submitted_ns) = times;
            let (sector, [sectors, in_flight]) = place;
            Record {
                kind: EventKind::ALL[kind],
                op: Op::ALL[op],
                fua,
                folded,
                errno,
                disk,
                queue,
                id,
                ts_ns,
                sector,
                sectors,
                in_flight,
                taken_ns,
                submitted_ns,
                seek_sectors: seek,
                interarrival_ns,
            }
        })
    }

    proptest! {
        #[test]
        fn a_record_comes_back_as_it_was(record in any_record()) {
            prop_assert_eq!(Record::decode(&record.encode()), Some(record));
        }

        #[test]
        fn any_words_are_a_record_or_none(words in any::<[u64; RECORD_WORDS]>()) {
            if let Some(record) = Record::decode(&words) {
                prop_assert_eq!(Record::decode(&record.encode()), Some(record));
                let _ = (record.wait_ns(), record.service_ns(), record.latency_ns());
            }
        }
    }

    #[test]
    fn empty_memory_holds_no_record() {
        assert_eq!(Record::decode(&[0; RECORD_WORDS]), None);
    }

    #[test]
    fn rings_lie_on_pages_of_their_own() {
        let sizes = [0, 1, 4_097, 1 << 16, u64::MAX];
        for (asked, version) in sizes.into_iter().flat_map(|n| [(n, 1), (n, VERSION)]) {
            let layout = Layout::new(asked).of_version(version).unwrap();
            assert!(RING_RECORDS.contains(&layout.ring_records()));
            assert!(layout.ring_records().is_power_of_two());
            assert!(layout.ring(0) >= layout.ring_header(RINGS_MAX - 1) + RING_HEADER_WORDS);
            assert!((0..RINGS_MAX).all(|l| layout.ring(l).is_multiple_of(PAGE_WORDS)));
            assert_eq!(layout.words(), layout.ring(RINGS_MAX));
            let groups = GroupTables::new(3, true, 1 << 20);
            let layout = layout.with_groups(Some(groups));
            let parts = [
                layout.group_windows(),
                layout.group_cpus(),
                layout.group_cells_of_all(groups),
                layout.group_blocks_of_all(groups),
            ];
            let mut end = layout.ring(RINGS_MAX);
            for part in parts {
                assert!(part.start.is_multiple_of(PAGE_WORDS) && part.start >= end);
                end = part.end;
            }
            assert_eq!(layout.words(), end);
            let last = RINGS_MAX - 1;
            assert_eq!(layout.group_blocks(groups, last).end, end);
            let cells = layout.group_cells_of_all(groups);
            assert_eq!(layout.group_cells(groups, last).end, cells.end);
        }
    }
}
