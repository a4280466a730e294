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
//!
//! This is version 1 of [`VERSION`], which is incremented with every change of a word.

use weir_model::{EventKind, Op, SECTOR_BYTES};

/// The version of everything in this file.
pub const VERSION: u32 = 1;

/// Maximum number of disks of one tapdisk.
pub const DISKS_MAX: usize = 1024;

/// Maximum number of rings (queues and connections) of one tapdisk at a time.
pub const RINGS_MAX: usize = 1024;

/// Words of a record: a cache line.
pub const RECORD_WORDS: usize = 8;

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
    /// Total number of records read: the consumer's only word. The tapdisk only compares it.
    pub const HEAD: usize = 8;
}

/// Minimum number of words per page.
const PAGE_WORDS: usize = 512;

/// The sizes of one shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    ring_records: u64,
}

impl Layout {
    /// With rings of this many records, rounded to a power of two in [`RING_RECORDS`].
    pub fn new(ring_records: u64) -> Layout {
        let (least, most) = (*RING_RECORDS.start(), *RING_RECORDS.end());
        let bounded = ring_records.clamp(least, most);
        Layout {
            ring_records: 1 << bounded.ilog2(),
        }
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
        self.ring_records as usize * RECORD_WORDS
    }

    /// Words of the whole memory.
    pub fn words(self) -> usize {
        self.ring(RINGS_MAX)
    }
}

/// A complete event: it can be decoded without any other.
///
/// | word | content |
/// | --- | --- |
/// | 0 | kind (1 `Q`, 2 `R`, 3 `E`, 4 `N`) in bits 0-3, FUA in bit 4; op in bits 8-15; errno 16-31; disk 32-47; queue 48-63 |
/// | 1 | id |
/// | 2 | time of the event, CLOCK_MONOTONIC in ns |
/// | 3 | first sector; all ones without one |
/// | 4 | length in sectors in bits 0-31, in flight in bits 32-63 |
/// | 5 | time at which the request was received |
/// | 6 | time at which it was submitted; 0 if it was not |
/// | 7 | seek in sectors, signed; the minimum if unknown |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Kind of event.
    pub kind: EventKind,
    /// Operation of the request.
    pub op: Op,
    /// Forced unit access: the data must be on stable storage at completion.
    pub fua: bool,
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
}

const NO_SECTOR: u64 = u64::MAX;
const NO_SEEK: i64 = i64::MIN;
const FUA_BIT: u64 = 1 << 4;

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
        ] = *words;
        let kind = (first & 15).checked_sub(1)?;
        let kind = *EventKind::ALL.get(kind as usize)?;
        let op = *Op::ALL.get((first >> 8 & 255) as usize)?;
        Some(Record {
            kind,
            op,
            fua: first & FUA_BIT != 0,
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_record() -> impl Strategy<Value = Record> {
        let names = (0..4usize, 0..5usize, any::<bool>(), any::<[u16; 3]>());
        let times = (any::<[u64; 2]>(), prop::option::of(1u64..));
        let place = (prop::option::of(0..u64::MAX), any::<[u32; 2]>());
        let seek = prop::option::of(i64::MIN + 1..);
        (names, times, place, seek, any::<u64>()).prop_map(|(names, times, place, seek, id)| {
            let (kind, op, fua, [errno, disk, queue]) = names;
            let ([ts_ns, taken_ns], submitted_ns) = times;
            let (sector, [sectors, in_flight]) = place;
            Record {
                kind: EventKind::ALL[kind],
                op: Op::ALL[op],
                fua,
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
            }
        })
    }

    proptest! {
        #[test]
        fn a_record_comes_back_as_it_was(record in any_record()) {
            prop_assert_eq!(Record::decode(&record.encode()), Some(record));
        }

        #[test]
        fn any_words_are_a_record_or_none(words in any::<[u64; 8]>()) {
            if let Some(record) = Record::decode(&words) {
                prop_assert_eq!(Record::decode(&record.encode()), Some(record));
                let _ = (record.wait_ns(), record.service_ns(), record.latency_ns());
            }
        }
    }

    #[test]
    fn empty_memory_holds_no_record() {
        assert_eq!(Record::decode(&[0; 8]), None);
    }

    #[test]
    fn rings_lie_on_pages_of_their_own() {
        for asked in [0, 1, 4_097, 1 << 16, u64::MAX] {
            let layout = Layout::new(asked);
            assert!(RING_RECORDS.contains(&layout.ring_records()));
            assert!(layout.ring_records().is_power_of_two());
            assert!(layout.ring(0) >= layout.ring_header(RINGS_MAX - 1) + RING_HEADER_WORDS);
            assert!((0..RINGS_MAX).all(|l| layout.ring(l).is_multiple_of(PAGE_WORDS)));
            assert_eq!(layout.words(), layout.ring(RINGS_MAX));
        }
    }
}
