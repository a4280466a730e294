//! [`Rings`]: reads the rings, one per processor, and merges their records in timestamp order.
//!
//! A kernel program reads the clock before it reserves a slot, so a record may appear shortly after
//! a later one from another processor. Records after the watermark are kept for the next drain; the
//! watermark is the clock before the drain less [`SETTLE_NS`]. A slot that is reserved but
//! incomplete stops the reading of its ring, and the watermark with it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::clock;
use crate::shared::Shared;

/// Bytes of `struct ring`, the control data of a ring: the head in one cache line, the tail in the
/// next.
pub const RING_BYTES: usize = 128;

/// Position of a ring's tail, in 8-byte words.
const TAIL_WORD: usize = 8;

/// Minimum and maximum size of one processor's ring in bytes.
const RING_BYTES_RANGE: (usize, usize) = (256 << 10, 4 << 20);

/// Slots of a processor's ring, a power of two, for records of `record_bytes`, if all rings have at
/// most `ring_bytes` together.
pub fn ring_slots(ring_bytes: usize, processors: usize, record_bytes: usize) -> u32 {
    let (least, most) = RING_BYTES_RANGE;
    let own = (ring_bytes / processors).clamp(least, most);
    1 << (own / record_bytes).max(1).ilog2()
}

/// A program needs less time than this between its timestamp and its record, unless it is
/// interrupted between them.
const SETTLE_NS: u64 = 100_000;

/// The records that were read and are still needed, in the order of reading.
pub trait Store {
    /// Adds a record, from its words in the ring.
    fn push(&mut self, words: &[AtomicU64]);

    /// The number of records.
    fn len(&self) -> usize;

    /// The timestamp of the record at a position.
    fn ts_ns(&mut self, at: usize) -> &mut u64;

    /// Keeps only the records at these positions, in this order.
    fn keep(&mut self, kept: &mut dyn ExactSizeIterator<Item = u32>);
}

/// The rings of all processors, with their read positions.
#[derive(Debug)]
pub struct Rings<S> {
    tails: Vec<u64>,
    slots: u64,
    words: usize,
    store: S,
    /// Timestamp and position of each record, in timestamp order.
    order: Vec<(u64, u32)>,
    settled: usize,
    watermark_ns: u64,
    late: u64,
    fill_max: u64,
}

/// The time on the kernel's clock up to which all events are in the rings by now.
pub fn settled_ns() -> u64 {
    clock::monotonic_ns().saturating_sub(SETTLE_NS)
}

impl<S: Store> Rings<S> {
    /// Rings of `slots` records of `record_bytes` for each processor, from which nothing was read
    /// yet.
    pub fn new(processors: u32, slots: u32, record_bytes: usize, store: S) -> Rings<S> {
        Rings {
            tails: vec![0; processors as usize],
            slots: u64::from(slots),
            words: record_bytes / 8,
            store,
            order: Vec::new(),
            settled: 0,
            watermark_ns: 0,
            late: 0,
            fill_max: 0,
        }
    }

    /// Reads the new records and discards those that were settled before. Afterwards
    /// [`Rings::settled`] has, in timestamp order, every new record up to [`Rings::watermark_ns`].
    /// That is at most `settled_ns`, a result of [`settled_ns`].
    pub fn drain(&mut self, rings: &Shared, records: &Shared, settled_ns: u64) {
        let mut watermark = settled_ns;
        self.forget();
        self.fill_max = 0;
        for processor in 0..self.tails.len() {
            if !self.drain_one(rings, records, processor) {
                // The timestamp of the incomplete slot may be as old as the last drain.
                watermark = self.watermark_ns;
            }
        }
        watermark = watermark.max(self.watermark_ns);
        self.sort(watermark);
        self.watermark_ns = watermark;
    }

    /// The positions of the records to be reported, in timestamp order.
    pub fn settled(&self) -> impl ExactSizeIterator<Item = u32> {
        self.order[..self.settled].iter().map(|(_, at)| *at)
    }

    /// The records.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// No further record at or before this time of the monotonic clock follows.
    pub fn watermark_ns(&self) -> u64 {
        self.watermark_ns
    }

    /// Late records; they were reported at the first instant after the watermark.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// The fill level of the fullest ring at the last drain, from 0 to 1.
    pub fn fill(&self) -> f64 {
        self.fill_max as f64 / self.slots as f64
    }

    /// True if records are kept for the next drain.
    pub fn holds_back(&self) -> bool {
        self.settled < self.order.len()
    }

    /// Reads one ring up to its head; false if it found an incomplete slot.
    fn drain_one(&mut self, rings: &Shared, records: &Shared, processor: usize) -> bool {
        let head_at = processor * RING_BYTES / 8;
        let rings = rings.words();
        let head = rings[head_at].load(Ordering::Acquire);
        let first = self.tails[processor];
        self.fill_max = self.fill_max.max(head - first);
        let slots = &records.words()[processor * self.slots as usize * self.words..];
        let mut tail = first;
        while tail < head {
            let slot = (tail & (self.slots - 1)) as usize * self.words;
            let words = &slots[slot..slot + self.words];
            if words[0].load(Ordering::Acquire) != tail + 1 {
                break;
            }
            self.store.push(words);
            tail += 1;
        }
        if tail != first {
            self.tails[processor] = tail;
            rings[head_at + TAIL_WORD].store(tail, Ordering::Release);
        }
        tail == head
    }

    /// Sorts the records, and determines how many of them are settled.
    fn sort(&mut self, watermark: u64) {
        let mut sorted = true;
        let mut before = 0;
        for at in 0..self.store.len() {
            let ts_ns = self.store.ts_ns(at);
            if *ts_ns <= self.watermark_ns {
                *ts_ns = self.watermark_ns + 1;
                self.late += 1;
            }
            sorted &= before <= *ts_ns;
            before = *ts_ns;
            self.order.push((before, at as u32));
        }
        if !sorted {
            // Each ring is nearly in order already; a stable sort detects such runs and merges
            // them.
            self.order.sort_by_key(|key| key.0);
        }
        self.settled = self.order.partition_point(|key| key.0 <= watermark);
    }

    /// Keeps only the records that are not settled.
    fn forget(&mut self) {
        // Few are kept; the memory of the others is reused, which is cheaper than a new allocation.
        let kept = &self.order[self.settled..];
        self.store.keep(&mut kept.iter().map(|(_, at)| *at));
        self.order.clear();
        self.settled = 0;
    }
}
