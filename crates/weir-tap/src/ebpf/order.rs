//! [`Lanes`]: reads the rings, one per processor, and puts what they hold into one order of time.
//!
//! A kernel program stamps a record before it takes a slot, so a record may appear a moment after a
//! later one from another processor. What is younger than the watermark is held back until the next
//! drain: the clock before the drain less [`SETTLE_NS`]. A slot that is taken but not yet whole
//! stops its lane, and the watermark with it.

use std::sync::atomic::Ordering;

use super::clock;
use super::layout::{self, Record, Submitter};
use super::programs::{Programs, Sizes};

/// A program takes less time than this from its stamp to its record, unless the processor is taken
/// away from it just then.
const SETTLE_NS: u64 = 100_000;

/// The rings of all processors, as far as they were read.
#[derive(Debug)]
pub struct Lanes {
    tails: Vec<u64>,
    slots: u64,
    words: usize,
    wide: bool,
    /// What was read and not yet forgotten, in the order of reading.
    records: Vec<Record>,
    submitters: Vec<Submitter>,
    /// Stamp and position of each record, in order of time.
    order: Vec<(u64, u32)>,
    settled: usize,
    watermark_ns: u64,
    late: u64,
    fill_max: u64,
}

/// Until when, on the kernel's clock, whatever happened is in the rings by now.
pub fn settled_ns() -> u64 {
    clock::monotonic_ns().saturating_sub(SETTLE_NS)
}

impl Lanes {
    /// Rings of which nothing was read.
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

    /// Reads what is there and forgets what was settled before. Afterwards [`Lanes::settled`] has,
    /// in order of time, every record up to [`Lanes::watermark_ns`] that it did not have before.
    /// That is `settled_ns` at most, which [`settled_ns`] gave.
    pub fn drain(&mut self, programs: &Programs, settled_ns: u64) {
        let mut watermark = settled_ns;
        self.forget();
        self.fill_max = 0;
        for lane in 0..self.tails.len() {
            if !self.drain_lane(programs, lane) {
                // What the open slot will say may be as old as the last drain.
                watermark = self.watermark_ns;
            }
        }
        watermark = watermark.max(self.watermark_ns);
        self.sort(watermark);
        self.watermark_ns = watermark;
    }

    /// The positions of the records to be told, in order of time.
    pub fn settled(&self) -> impl ExactSizeIterator<Item = u32> {
        self.order[..self.settled].iter().map(|(_, at)| *at)
    }

    /// The record at a position.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The submitter at a position; empty if nobody asked for submitters.
    pub fn submitters(&self) -> &[Submitter] {
        &self.submitters
    }

    /// No record at or before this time of the monotonic clock will come.
    pub fn watermark_ns(&self) -> u64 {
        self.watermark_ns
    }

    /// Records that came after their time had passed; they were told at the first instant still
    /// open.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// How full the fullest ring was at the last drain, from 0 to 1.
    pub fn fill(&self) -> f64 {
        self.fill_max as f64 / self.slots as f64
    }

    /// Whether records are held back for the next drain.
    pub fn holds_back(&self) -> bool {
        self.settled < self.order.len()
    }

    /// Reads one ring up to its head; false if a slot on the way is not whole yet.
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

    /// Orders what was read, and finds how much of it is settled.
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
            // Each lane is nearly in order already; a stable sort finds such runs and merges them.
            self.order.sort_by_key(|key| key.0);
        }
        self.settled = self.order.partition_point(|key| key.0 <= watermark);
    }

    /// Keeps only what is not settled.
    fn forget(&mut self) {
        // Few are kept; the room of the others is used again, which is cheaper than new memory.
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
