//! [`Lanes`]: reads the rings, one per processor, and merges their records in timestamp order.
//!
//! A kernel program reads the clock before it reserves a slot, so a record may appear shortly after
//! a later one from another processor. Records after the watermark are kept for the next drain; the
//! watermark is the clock before the drain less [`SETTLE_NS`]. A slot that is reserved but
//! incomplete stops the reading of its ring, and the watermark with it.

use std::sync::atomic::Ordering;

use super::clock;
use super::layout::{self, Record, Submitter};
use super::programs::{Programs, Sizes};

/// A program needs less time than this between its timestamp and its record, unless it is
/// interrupted between them.
const SETTLE_NS: u64 = 100_000;

/// The rings of all processors, with their read positions.
#[derive(Debug)]
pub struct Lanes {
    tails: Vec<u64>,
    slots: u64,
    words: usize,
    wide: bool,
    /// Records that were read and are still needed, in the order of reading.
    records: Vec<Record>,
    submitters: Vec<Submitter>,
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

impl Lanes {
    /// Rings from which nothing was read yet.
    pub fn new(sizes: &Sizes) -> Lanes {
        Lanes {
            tails: vec![0; sizes.processors as usize],
            slots: u64::from(sizes.lane_slots),
            words: sizes.record_bytes / 8,
            wide: sizes.record_bytes > layout::RECORD_BYTES,
            records: Vec::new(),
            submitters: Vec::new(),
            order: Vec::new(),
            settled: 0,
            watermark_ns: 0,
            late: 0,
            fill_max: 0,
        }
    }

    /// Reads the new records and discards those that were settled before. Afterwards
    /// [`Lanes::settled`] has, in timestamp order, every new record up to [`Lanes::watermark_ns`].
    /// That is at most `settled_ns`, a result of [`settled_ns`].
    pub fn drain(&mut self, programs: &Programs, settled_ns: u64) {
        let mut watermark = settled_ns;
        self.forget();
        self.fill_max = 0;
        for lane in 0..self.tails.len() {
            if !self.drain_lane(programs, lane) {
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

    /// The record at a position.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The submitter at a position; empty if submitters are not needed.
    pub fn submitters(&self) -> &[Submitter] {
        &self.submitters
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
    fn drain_lane(&mut self, programs: &Programs, lane: usize) -> bool {
        let head_at = lane * layout::LANE_BYTES / 8;
        let lanes = programs.lanes.words();
        let head = lanes[head_at].load(Ordering::Acquire);
        let first = self.tails[lane];
        self.fill_max = self.fill_max.max(head - first);
        let records = programs.records.words();
        let slots = &records[lane * self.slots as usize * self.words..];
        let mut tail = first;
        while tail < head {
            let slot = (tail & (self.slots - 1)) as usize * self.words;
            let words = &slots[slot..slot + self.words];
            if words[0].load(Ordering::Acquire) != tail + 1 {
                break;
            }
            let word = |i: usize| words[i].load(Ordering::Relaxed);
            self.records.push(Record::decode(word));
            if self.wide {
                self.submitters.push(Submitter::decode(self.words, word));
            }
            tail += 1;
        }
        if tail != first {
            self.tails[lane] = tail;
            lanes[head_at + layout::LANE_TAIL_WORD].store(tail, Ordering::Release);
        }
        tail == head
    }

    /// Sorts the records, and determines how many of them are settled.
    fn sort(&mut self, watermark: u64) {
        let mut sorted = true;
        let mut before = 0;
        for (at, record) in self.records.iter_mut().enumerate() {
            if record.ts_ns <= self.watermark_ns {
                record.ts_ns = self.watermark_ns + 1;
                self.late += 1;
            }
            sorted &= before <= record.ts_ns;
            before = record.ts_ns;
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
        let records = kept.iter().map(|(_, at)| self.records[*at as usize]);
        let records: Vec<Record> = records.collect();
        self.records.clear();
        self.records.extend(records);
        if self.wide {
            let submitters = kept.iter().map(|(_, at)| self.submitters[*at as usize]);
            let submitters: Vec<Submitter> = submitters.collect();
            self.submitters.clear();
            self.submitters.extend(submitters);
        }
        self.order.clear();
        self.settled = 0;
    }
}
