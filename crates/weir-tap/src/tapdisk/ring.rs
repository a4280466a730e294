//! The rings between a tapdisk and a consumer: each has one writer, in the tapdisk, and one reader.
//!
//! A writer works in rounds. [`Writer::begin`] marks its ring as busy before it reads the clock,
//! [`Writer::push`] writes, [`Writer::end`] publishes the records and a watermark. Neither side
//! waits for the other: if a ring is full, the record is lost and counted.
//!
//! The consumer determines its watermark as follows: it reads the clock (T), then `busy`. If that
//! is 0, the writer's next timestamp will be later than T, and all its previous records are
//! visible. If it is 1, the watermark of the ring is `watermark_ns`. A fence on either side ensures
//! that one of them sees the other's write.
//!
//! The consumer can write to all of the memory. Therefore the tapdisk reads nothing in a ring
//! except the consumer's position, and only to determine whether there is room: an invalid position
//! is treated as a full ring. For the tables of groups see [`super::groups`].

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create,
};

use super::layout::{
    DISKS_MAX, DROPS_WORD, Layout, NO_INTERARRIVAL, RECORD_WORDS, RINGS_MAX, RINGS_USED_WORD,
    Record, ring_header,
};
use crate::ebpf::fold::Tables;
use crate::ebpf::fold::layout::Folding;
use crate::shared::{Shared, SharedPart};

/// Margin in which a record may not be visible yet although its writer was seen idle: a CPU may
/// read the clock slightly later than in program order.
const SETTLE_NS: u64 = 1_000;

/// Maximum number of records that are retained until all watermarks have passed them. Beyond that
/// they are emitted, and later records of the delayed ring are late.
const HELD_MAX: usize = 1 << 20;

/// The memory that a tapdisk shares with one consumer.
#[derive(Debug)]
pub struct Memory {
    shared: Arc<Shared>,
    layout: Layout,
    fd: OwnedFd,
}

impl Memory {
    /// Creates memory, whose size is sealed.
    ///
    /// # Errors
    /// Errors of the system: memory, limits.
    pub fn create(layout: Layout) -> io::Result<Memory> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("weir-tapdisk", flags)?;
        ftruncate(&fd, bytes(layout.words()))?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        fallocate(&fd, FallocateFlags::empty(), 0, bytes(layout.ring(0)))?;
        let memory = Memory::map(fd, layout)?;
        if layout.groups().is_some() {
            memory.allocate(layout.group_windows().start..layout.group_cpus().end)?;
        }
        Ok(memory)
    }

    /// Maps memory that a tapdisk created.
    ///
    /// # Errors
    /// If it does not match the layout, or its size is not sealed, or an error of the system.
    pub fn open(fd: OwnedFd, layout: Layout) -> io::Result<Memory> {
        let size = u64::try_from(fstat(&fd)?.st_size).unwrap_or(0);
        let sealed = fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK);
        if size != bytes(layout.words()) || !sealed {
            let why = "the tap's shared memory differs from its declared size, or is not sealed";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Memory::map(fd, layout)
    }

    fn map(fd: OwnedFd, layout: Layout) -> io::Result<Memory> {
        Ok(Memory {
            shared: Arc::new(Shared::map(fd.as_fd(), 8, layout.words())?),
            layout,
            fd,
        })
    }

    /// Its layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Allocates the memory of a ring now, while a failure is harmless.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn reserve(&self, index: usize) -> io::Result<()> {
        let ring = self.layout.ring(index);
        self.allocate(ring..ring + self.layout.ring_words())?;
        if let Some(groups) = self.layout.groups() {
            self.allocate(self.layout.group_cells(groups, index))?;
            self.allocate(self.layout.group_blocks(groups, index))?;
        }
        Ok(())
    }

    fn allocate(&self, words: Range<usize>) -> io::Result<()> {
        let (at, length) = (bytes(words.start), bytes(words.len()));
        Ok(fallocate(&self.fd, FallocateFlags::empty(), at, length)?)
    }

    /// Returns all memory to the system, even if it is still mapped by writers and consumer.
    pub fn release(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Memory that cannot be returned now is returned with the last mapping.
        let _ = fallocate(&self.fd, flags, 0, bytes(self.layout.words()));
    }

    /// Publishes the number of rings in use.
    pub fn use_rings(&self, readers: usize) {
        self.shared.words()[RINGS_USED_WORD].store(readers as u64, Ordering::SeqCst);
    }

    /// The number of rings ever used, as the tapdisk reports.
    fn rings_used(&self) -> usize {
        let used = self.shared.words()[RINGS_USED_WORD].load(Ordering::Acquire);
        used.min(RINGS_MAX as u64) as usize
    }

    /// The number of records of each disk that were lost because a ring was full, if not 0.
    pub fn drops(&self) -> Vec<(u16, u64)> {
        let words = &self.shared.words()[DROPS_WORD..DROPS_WORD + DISKS_MAX];
        let counts = words.iter().map(|word| word.load(Ordering::Relaxed));
        let some = counts.enumerate().filter(|(_, count)| *count > 0);
        some.map(|(disk, count)| (disk as u16, count)).collect()
    }

    /// The number of events that were not recorded because they were not requested, over all rings.
    pub fn avoided(&self) -> u64 {
        let avoided = |index| {
            self.word(index, ring_header::AVOIDED)
                .load(Ordering::Relaxed)
        };
        (0..self.rings_used())
            .map(avoided)
            .fold(0, u64::wrapping_add)
    }

    fn word(&self, index: usize, word: usize) -> &AtomicU64 {
        &self.shared.words()[self.layout.ring_header(index) + word]
    }

    /// The tables of groups, for the consumer; `folding` is the configuration of the writers.
    /// `None` without groups.
    pub fn tables(&self, folding: Folding) -> Option<Tables> {
        let layout = self.layout;
        let groups = layout.groups()?;
        let part = |words| SharedPart::new(self.shared.clone(), words);
        Some(Tables {
            windows: part(layout.group_windows()),
            cpus: part(layout.group_cpus()),
            cells: part(layout.group_cells_of_all(groups)),
            blocks: part(layout.group_blocks_of_all(groups)),
            folding: Folding {
                cells: groups.cells,
                blocks: groups.blocks,
                moments: groups.moments,
                ..folding
            },
            processors: RINGS_MAX,
        })
    }

    /// All words.
    pub(super) fn words(&self) -> &[AtomicU64] {
        self.shared.words()
    }

    /// The slot of record number `position` of a ring.
    fn slot(&self, index: usize, position: u64) -> &[AtomicU64] {
        let slot = (position & (self.layout.ring_records() - 1)) as usize;
        let words = self.layout.record_words();
        let at = self.layout.ring(index) + slot * words;
        &self.shared.words()[at..at + words]
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn bytes(words: usize) -> u64 {
    words as u64 * 8
}

/// The writer of a ring.
#[derive(Debug)]
pub struct Writer {
    memory: Arc<Memory>,
    index: usize,
    tail: u64,
    /// The consumer's position when it was last read.
    head: u64,
}

impl Writer {
    /// The writer of ring `index`, which already contains everything before record number `tail`.
    pub fn new(memory: Arc<Memory>, index: usize, tail: u64) -> Writer {
        Writer {
            memory,
            index,
            tail,
            // Read on first use.
            head: tail.wrapping_sub(u64::MAX / 2),
        }
    }

    /// Sets the time from which everything is recorded.
    pub fn since(&self, since_ns: u64) {
        self.memory
            .word(self.index, ring_header::SINCE_NS)
            .store(since_ns, Ordering::Relaxed);
    }

    /// Begins a round. The caller executes a sequentially consistent fence before the first
    /// timestamp.
    #[inline]
    pub fn begin(&self) {
        self.memory
            .word(self.index, ring_header::BUSY)
            .store(1, Ordering::Relaxed);
    }

    /// Writes a record; false if the ring is full.
    #[inline]
    pub fn push(&mut self, record: &[u64; RECORD_WORDS]) -> bool {
        let room = self.memory.layout.ring_records();
        if self.tail.wrapping_sub(self.head) >= room {
            let head = self.memory.word(self.index, ring_header::HEAD);
            self.head = head.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) >= room {
                return false;
            }
        }
        let slot = self.memory.slot(self.index, self.tail);
        for (word, value) in slot.iter().zip(record) {
            word.store(*value, Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Counts a record of a disk that was lost because the ring was full.
    #[cold]
    pub fn drop_one(&self, disk: u16) {
        let word = DROPS_WORD + usize::from(disk) % DISKS_MAX;
        self.memory.shared.words()[word].fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a round: everything up to `watermark_ns` is written, and `avoided` events were not
    /// requested so far.
    #[inline]
    pub fn end(&self, watermark_ns: u64, avoided: u64) {
        let word = |word| self.memory.word(self.index, word);
        word(ring_header::TAIL).store(self.tail, Ordering::Release);
        word(ring_header::AVOIDED).store(avoided, Ordering::Relaxed);
        word(ring_header::WATERMARK_NS).store(watermark_ns, Ordering::Release);
        word(ring_header::BUSY).store(0, Ordering::Release);
    }

    /// Total number of records written.
    pub fn tail(&self) -> u64 {
        self.tail
    }
}

/// The reader of one ring.
#[derive(Debug)]
struct Reader {
    index: usize,
    head: u64,
    /// Everything up to this time was read.
    known_ns: u64,
    /// Earlier requests have no record `Q`.
    since_ns: u64,
}

/// Corrupted shared memory: an invalid word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tap's ring {index} is corrupt")]
pub struct Damaged {
    /// The ring.
    pub index: usize,
}

/// A record, and whether its request was received before recording began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The record.
    pub record: Record,
    /// True if there is no record `Q` of it.
    pub started_before: bool,
}

/// The readers of all rings, which merge the records in timestamp order.
#[derive(Debug)]
pub struct Readers {
    memory: Arc<Memory>,
    readers: Vec<Reader>,
    /// Records later than the watermark, in timestamp order.
    held: Vec<Read>,
    known_ns: u64,
    late: u64,
    malformed: u64,
    fill: f64,
}

impl Readers {
    /// Readers without records; events at or before `known_ns` are not emitted.
    pub fn new(memory: Arc<Memory>, known_ns: u64) -> Readers {
        Readers {
            memory,
            readers: Vec::new(),
            held: Vec::new(),
            known_ns,
            late: 0,
            malformed: 0,
            fill: 0.0,
        }
    }

    /// The shared memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Reads the available records, and moves those up to [`Readers::known_ns`] to `to`, in
    /// timestamp order. `clock` is CLOCK_MONOTONIC, read once.
    ///
    /// # Errors
    /// If the memory is corrupted.
    pub fn read(&mut self, clock: impl Fn() -> u64, to: &mut Vec<Read>) -> Result<(), Damaged> {
        self.read_up_to(clock, |known_ns| known_ns, to)
    }

    /// As [`Readers::read`]; `limit` receives the time up to which all events are recorded, and
    /// returns the one up to which records are moved: the same, or an earlier one.
    ///
    /// # Errors
    /// If the memory is corrupted.
    pub fn read_up_to(
        &mut self,
        clock: impl Fn() -> u64,
        limit: impl FnOnce(u64) -> u64,
        to: &mut Vec<Read>,
    ) -> Result<(), Damaged> {
        let now_ns = clock();
        std::sync::atomic::fence(Ordering::SeqCst);
        let settled_ns = now_ns.saturating_sub(SETTLE_NS);
        for index in self.readers.len()..self.memory.rings_used() {
            self.readers.push(Reader::new(index));
        }
        let mut known_ns = settled_ns;
        let before = self.held.len();
        self.fill = 0.0;
        for reader in &mut self.readers {
            let found = reader.read(&self.memory, settled_ns, &mut self.held)?;
            self.malformed += found.malformed;
            self.fill = self.fill.max(found.fill);
            known_ns = known_ns.min(reader.known_ns);
        }
        let mut known_ns = limit(known_ns.max(self.known_ns)).max(self.known_ns);
        // A writer that hangs must not cause unbounded retention of the others' records.
        if self.held.len() > HELD_MAX {
            known_ns = settled_ns.max(self.known_ns);
        }
        self.settle(before, known_ns, to);
        Ok(())
    }

    /// Reads the remaining records after the tapdisk has ended: none are retained.
    ///
    /// # Errors
    /// As [`Readers::read`].
    pub fn finish(&mut self, clock: fn() -> u64, to: &mut Vec<Read>) -> Result<(), Damaged> {
        let read = self.read(clock, to);
        self.settle(self.held.len(), clock().max(self.known_ns), to);
        read
    }

    fn settle(&mut self, before: usize, known_ns: u64, to: &mut Vec<Read>) {
        for read in &mut self.held[before..] {
            if read.record.ts_ns <= self.known_ns {
                read.record.ts_ns = self.known_ns.saturating_add(1);
                self.late += 1;
            }
        }
        // Each ring is in order already; a stable sort finds such runs and merges them.
        self.held.sort_by_key(|read| read.record.ts_ns);
        let settled = self.held.partition_point(|r| r.record.ts_ns <= known_ns);
        to.extend(self.held.drain(..settled));
        self.known_ns = known_ns;
    }

    /// The watermark, ns of CLOCK_MONOTONIC: all records up to this time were emitted.
    pub fn known_ns(&self) -> u64 {
        self.known_ns
    }

    /// Number of late records; they were emitted with the first timestamp after the watermark.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Number of slots without a valid record.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Fill level of the fullest ring when it was read, from 0 to 1.
    pub fn fill(&self) -> f64 {
        self.fill
    }

    /// Whether records later than [`Readers::known_ns`] were read.
    pub fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }
}

struct Found {
    malformed: u64,
    fill: f64,
}

impl Reader {
    fn new(index: usize) -> Reader {
        Reader {
            index,
            head: 0,
            known_ns: 0,
            since_ns: 0,
        }
    }

    fn read(
        &mut self,
        memory: &Memory,
        settled_ns: u64,
        to: &mut Vec<Read>,
    ) -> Result<Found, Damaged> {
        let word = |word| memory.word(self.index, word);
        let known_ns = match word(ring_header::BUSY).load(Ordering::Acquire) {
            0 => settled_ns,
            _ => word(ring_header::WATERMARK_NS)
                .load(Ordering::Acquire)
                .min(settled_ns),
        };
        self.known_ns = self.known_ns.max(known_ns);
        let tail = word(ring_header::TAIL).load(Ordering::Acquire);
        self.since_ns = word(ring_header::SINCE_NS).load(Ordering::Relaxed);
        let waiting = tail.wrapping_sub(self.head);
        let room = memory.layout.ring_records();
        if waiting > room {
            return Err(Damaged { index: self.index });
        }
        let mut malformed = 0;
        for position in 0..waiting {
            let slot = memory.slot(self.index, self.head.wrapping_add(position));
            // Version 1 lacks the last word.
            let word = |i: usize| slot.get(i).map(|word| word.load(Ordering::Relaxed));
            let words = std::array::from_fn(|i| word(i).unwrap_or(NO_INTERARRIVAL));
            match Record::decode(&words) {
                Some(record) => to.push(Read {
                    started_before: record.taken_ns < self.since_ns,
                    record,
                }),
                None => malformed += 1,
            }
        }
        if waiting > 0 {
            self.head = tail;
            word(ring_header::HEAD).store(tail, Ordering::Release);
        }
        Ok(Found {
            malformed,
            fill: waiting as f64 / room as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::request;
    use super::*;

    #[test]
    fn records_of_an_earlier_version_lack_the_last_word() {
        let record = Record {
            interarrival_ns: Some(5),
            ..request(1_000)
        };
        let read = |version| {
            let layout = Layout::new(0).of_version(version).unwrap();
            let memory = Arc::new(Memory::create(layout).unwrap());
            memory.reserve(0).unwrap();
            memory.use_rings(1);
            let mut writer = Writer::new(memory.clone(), 0, 0);
            writer.begin();
            for id in 1..=3 {
                assert!(writer.push(&Record { id, ..record }.encode()));
            }
            writer.end(2_000, 0);
            let mut received = Vec::new();
            let mut readers = Readers::new(memory, 0);
            readers.read(|| u64::MAX, &mut received).unwrap();
            assert_eq!(readers.malformed(), 0);
            let each = received.iter().map(|read| read.record);
            each.collect::<Vec<Record>>()
        };
        let expected = |interarrival_ns| {
            let of = |id| Record {
                id,
                interarrival_ns,
                ..record
            };
            [1, 2, 3].map(of)
        };
        assert_eq!(read(2), expected(Some(5)));
        assert_eq!(read(1), expected(None));
        assert_eq!(Layout::new(0).of_version(0), None);
        assert_eq!(Layout::new(0).of_version(3), None);
    }

    #[test]
    fn a_stalled_ring_does_not_buffer_rows_of_others_without_limit() {
        let memory = Arc::new(Memory::create(Layout::new(u64::MAX)).unwrap());
        (0..2).for_each(|index| memory.reserve(index).unwrap());
        memory.use_rings(2);
        let room = memory.layout().ring_records();
        let mut hangs = Writer::new(memory.clone(), 0, 0);
        hangs.begin();
        let mut goes_on = Writer::new(memory.clone(), 1, 0);
        let mut readers = Readers::new(memory, 0);
        let (mut received, mut ts_ns) = (Vec::new(), 1_000);
        let mut more = |readers: &mut Readers, received: &mut Vec<Read>| {
            goes_on.begin();
            for _ in 0..room {
                ts_ns += 1;
                assert!(goes_on.push(&request(ts_ns).encode()));
            }
            goes_on.end(ts_ns, 0);
            readers.read(|| ts_ns + SETTLE_NS, received).unwrap();
        };
        for _ in 0..HELD_MAX as u64 / room {
            more(&mut readers, &mut received);
            assert!(received.is_empty() && readers.holds_back());
        }
        more(&mut readers, &mut received);
        assert!(!readers.holds_back());
        assert_eq!(received.len() as u64, HELD_MAX as u64 + room);
        // Later records of the delayed ring are emitted, late.
        assert!(hangs.push(&request(1_001).encode()));
        hangs.end(1_001, 0);
        received.clear();
        readers.read(|| u64::MAX, &mut received).unwrap();
        assert_eq!((received.len(), readers.late()), (1, 1));
    }
}
