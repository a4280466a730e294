//! [`Lanes`]: reads the rings, one per processor, and puts what they hold into one order of time.
//!
//! A kernel program stamps a record before it takes a slot, so a record may appear a moment after a later one from another processor.
//! What is younger than the watermark is held back until the next drain: the clock before the drain less [`SETTLE_NS`]. A slot that is
//! taken but not yet whole stops its lane, and the watermark with it.

use std::sync::atomic::Ordering;

use super::clock;
use super::layout::{self, Record};
use super::programs::{Programs, Sizes, record_bytes};

/// A program takes less time than this from its stamp to its record, unless the processor is taken away from it just then.
pub const SETTLE_NS: u64 = 100_000;

/// The rings of all processors, as far as they were read.
#[derive(Debug)]
pub struct Lanes {
    tails: Vec<u64>,
    slots: u64,
    words: usize,
    wide: bool,
    held: Vec<Record>,
    ready: Vec<Record>,
    keys: Vec<(u64, u32)>,
    watermark_ns: u64,
    late: u64,
    fill_max: u64,
}

impl Lanes {
    /// Rings of which nothing was read.
    pub fn new(sizes: &Sizes, wide: bool) -> Lanes {
        Lanes {
            tails: vec![0; sizes.processors as usize],
            slots: u64::from(sizes.lane_slots),
            words: record_bytes(wide) / 8,
            wide,
            held: Vec::new(),
            ready: Vec::new(),
            keys: Vec::new(),
            watermark_ns: 0,
            late: 0,
            fill_max: 0,
        }
    }

    /// Reads what is there. Afterwards [`Lanes::ready`] has, in order of time, every record up to [`Lanes::watermark_ns`] that was not
    /// there before.
    pub fn drain(&mut self, programs: &Programs) {
        let mut watermark = clock::monotonic_ns().saturating_sub(SETTLE_NS);
        self.fill_max = 0;
        for lane in 0..self.tails.len() {
            if !self.drain_lane(programs, lane) {
                // What the open slot says may be as old as the last drain.
                watermark = self.watermark_ns;
            }
        }
        watermark = watermark.max(self.watermark_ns);
        self.sort(watermark);
        self.watermark_ns = watermark;
    }

    /// The records of the last drain, in order of time.
    pub fn ready(&self) -> &[Record] {
        &self.ready
    }

    /// No record at or before this time of the monotonic clock will come.
    pub fn watermark_ns(&self) -> u64 {
        self.watermark_ns
    }

    /// Records that came after their time had passed; they were told at the first instant still open.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// How full the fullest ring was at the last drain, from 0 to 1.
    pub fn fill(&self) -> f64 {
        self.fill_max as f64 / self.slots as f64
    }

    /// Whether records are held back for the next drain.
    pub fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }

    /// Reads one ring up to its head; false if a slot on the way is not whole yet.
    fn drain_lane(&mut self, programs: &Programs, lane: usize) -> bool {
        let head_at = lane * layout::LANE_BYTES / 8;
        let lanes = programs.lanes.words();
        let head = lanes[head_at].load(Ordering::Acquire);
        let mut tail = self.tails[lane];
        self.fill_max = self.fill_max.max(head - tail);
        let records = programs.records.words();
        let first = lane as u64 * self.slots;
        let mut whole = true;
        while tail < head {
            let slot = (first + (tail & (self.slots - 1))) as usize * self.words;
            let words = &records[slot..slot + self.words];
            if words[0].load(Ordering::Acquire) != tail + 1 {
                whole = false;
                break;
            }
            let record = Record::decode(|i| words[i].load(Ordering::Relaxed), self.wide);
            self.held.push(record);
            tail += 1;
        }
        if tail != self.tails[lane] {
            self.tails[lane] = tail;
            lanes[head_at + layout::LANE_TAIL_WORD].store(tail, Ordering::Release);
        }
        whole
    }

    fn sort(&mut self, watermark: u64) {
        self.ready.clear();
        if self.held.is_empty() {
            return;
        }
        for record in &mut self.held {
            if record.ts_ns <= self.watermark_ns {
                record.ts_ns = self.watermark_ns + 1;
                self.late += 1;
            }
        }
        // Each lane is nearly in order already, and a stable sort finds such runs and merges them.
        self.keys.clear();
        let keys = self.held.iter().zip(0..).map(|(r, i)| (r.ts_ns, i));
        self.keys.extend(keys);
        self.keys.sort_by_key(|key| key.0);
        let settled = self.keys.partition_point(|key| key.0 <= watermark);
        let held = &self.held;
        let of = |key: &(u64, u32)| held[key.1 as usize];
        self.ready.extend(self.keys[..settled].iter().map(of));
        let kept: Vec<Record> = self.keys[settled..].iter().map(of).collect();
        self.held.clear();
        self.held.extend(kept);
    }
}
