//! [`Recorder`]: writes records of an I/O queue's requests to the consumers' rings.
//!
//! It belongs to the I/O queue's thread. It never waits, allocates or calls the kernel while
//! requests are processed; after a change of consumers, the next round starts by reading their
//! list. Without consumers, a round costs one load.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use weir_model::{EventKind, Op};
use weir_tap::monotonic_ns;
use weir_tap::tapdisk::groups::{GroupWriter, Values, values_of};
use weir_tap::tapdisk::layout::{RECORD_WORDS, Record, sectors_of};
use weir_tap::tapdisk::ring::Writer;
use weir_tap::tapdisk::words::{DiskWord, FoldWord};

use crate::hub::{EventTotals, Hub, HubError, Subscription};
use crate::selection::RecordSelection;
use crate::{Outcome, Request};

/// A request when it was received from the guest. Times are CLOCK_MONOTONIC, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedRequest {
    /// The request.
    pub request: Request,
    /// Its number, counted from 1 over all requests of its disk.
    pub id: u64,
    /// When it was received.
    pub received_ns: u64,
    /// Requests of its disk in flight, itself included.
    pub in_flight: u32,
    /// First sector minus last sector of the disk's previous request; `None` for a flush and for
    /// the first.
    pub seek_sectors: Option<i64>,
    /// From the receipt of the disk's previous request to its receipt; `None` for the first.
    pub interarrival_ns: Option<u64>,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRequest {
    /// The request, as recorded when it was received.
    pub received: ReceivedRequest,
    /// When it was submitted; `None` if it never was.
    pub submitted_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// The recorder of an I/O queue.
///
/// ```text
/// recorder.begin();        before the first read of the clock
/// recorder.request_received(&..);     in time order
/// recorder.request_ended(&..);
/// recorder.end();          now consumers can see them
/// ```
///
/// Between [`Recorder::begin`] and [`Recorder::end`] consumers cannot know which records will
/// follow, so an I/O queue ends the round before it waits, and begins another afterwards.
#[derive(Debug)]
pub struct Recorder {
    hub: Arc<Hub>,
    disk: u16,
    queue: u16,
    ring: usize,
    generation: u64,
    rings: Vec<ConsumerRing>,
    /// Whether any consumer may want events of a kind.
    selected_kinds: [bool; EventKind::ALL.len()],
    /// Events while there were consumers.
    seen: u64,
    /// The time of the last one.
    last_ns: u64,
}

/// One consumer, as this I/O queue sees it.
#[derive(Debug)]
struct ConsumerRing {
    // Both are dropped before the subscription, so that no I/O queue is the last holder of the
    // memory.
    writer: Writer,
    groups: Option<Groups>,
    subscription: Arc<Subscription>,
    selection: RecordSelection,
    /// The events that the I/O queue had seen before.
    seen_before: u64,
    /// The counts of earlier I/O queues of this number.
    before: EventTotals,
    lost: u64,
    grouped: u64,
}

/// The groups that a consumer requests instead of records.
#[derive(Debug)]
struct Groups {
    writer: GroupWriter,
    /// The clauses of each fold, a bit each.
    clauses: Vec<u64>,
}

impl Groups {
    /// Adds a response to the groups of those folds whose clauses select it. Sets the folds that
    /// contain it in the record, and returns the clauses that still need the record.
    #[inline]
    fn add(&self, record: &mut Record, values: &Values, held: u64) -> u64 {
        let folds = self.clauses.iter().enumerate();
        let wanted = folds.filter(|(_, clauses)| held & **clauses != 0);
        let wanted = wanted.fold(0, |all, (number, _)| all | 1 << number);
        if wanted == 0 {
            return held;
        }
        record.folded = self.writer.add(record, values, wanted);
        let folds = self.clauses.iter().enumerate();
        let folded = folds.filter(|(number, _)| record.folded >> number & 1 != 0);
        let needed = folded.fold(held, |held, (_, clauses)| held & !clauses);
        if needed == 0 {
            self.writer.count_unrecorded();
        }
        needed
    }
}

impl Recorder {
    /// The recorder of an I/O queue of disk number `disk`, as returned by [`Hub::register`].
    ///
    /// # Errors
    /// When there are too many I/O queues.
    pub fn new(hub: &Arc<Hub>, disk: u16, queue: u16) -> Result<Recorder, HubError> {
        Ok(Recorder {
            ring: hub.open_ring(disk)?,
            hub: hub.clone(),
            disk,
            queue,
            generation: 0,
            rings: Vec::new(),
            selected_kinds: [false; EventKind::ALL.len()],
            seen: 0,
            last_ns: 0,
        })
    }

    /// Begins a round: before the I/O queue reads the clock for the first time.
    #[inline]
    pub fn begin(&mut self) {
        if self.hub.generation() != self.generation {
            self.update_consumers();
        }
        if self.rings.is_empty() {
            return;
        }
        for ring in &self.rings {
            ring.writer.begin();
        }
        // A consumer that has not seen the round begin by now has read the clock before the I/O
        // queue does.
        fence(Ordering::SeqCst);
    }

    /// Records the receipt of a request.
    #[inline]
    pub fn request_received(&mut self, received: &ReceivedRequest) {
        if self.rings.is_empty() {
            return;
        }
        self.count_event(received.received_ns);
        if self.selected_kinds[EventKind::Request as usize] {
            let record = self.request(received);
            self.write_record(record);
        }
    }

    /// Records that a request ended.
    #[inline]
    pub fn request_ended(&mut self, ended: &EndedRequest) {
        if self.rings.is_empty() {
            return;
        }
        self.count_event(ended.ended_ns);
        let (kind, errno) = match ended.outcome {
            Outcome::Done => (EventKind::Response, 0),
            Outcome::Failed(errno) => (EventKind::Error, u16::try_from(errno).unwrap_or(u16::MAX)),
            Outcome::Unsupported => (EventKind::Unsupported, 0),
        };
        if self.selected_kinds[kind as usize] {
            let record = Record {
                kind,
                errno,
                ts_ns: ended.ended_ns,
                submitted_ns: ended.submitted_ns,
                ..self.request(&ended.received)
            };
            self.write_record(record);
        }
    }

    /// Ends a round: its records become visible to consumers.
    #[inline]
    pub fn end(&mut self) {
        // The next event may have the same time.
        let published_ns = self.last_ns.saturating_sub(1);
        for ring in &self.rings {
            let totals = ring.totals(self.seen);
            ring.writer.end(published_ns, totals.avoided);
            ring.subscription.ring(self.ring).set(totals);
        }
    }

    #[inline]
    fn count_event(&mut self, ts_ns: u64) {
        self.seen += 1;
        self.last_ns = ts_ns;
    }

    #[inline]
    fn request(&self, received: &ReceivedRequest) -> Record {
        let Request { op, fua, .. } = received.request;
        Record {
            kind: EventKind::Request,
            op,
            fua,
            folded: 0,
            errno: 0,
            disk: self.disk,
            queue: self.queue,
            id: received.id,
            ts_ns: received.received_ns,
            sector: (op != Op::Flush).then_some(received.request.sector),
            sectors: sectors_of(received.request.whole_bytes()),
            in_flight: received.in_flight,
            taken_ns: received.received_ns,
            submitted_ns: None,
            seek_sectors: received.seek_sectors,
            interarrival_ns: received.interarrival_ns,
        }
    }

    #[inline]
    fn write_record(&mut self, record: Record) {
        let (mut words, mut values) = (None, None);
        for ring in &mut self.rings {
            let Some(groups) = ring.groups.as_ref().filter(|_| is_grouped(&record)) else {
                if ring.selection.holds(&record) {
                    // The same for all consumers without groups.
                    ring.push(&record, words.get_or_insert_with(|| record.encode()));
                }
                continue;
            };
            let held = ring.selection.held(&record);
            if held == 0 {
                continue;
            }
            let mut own = record;
            let values = values.get_or_insert_with(|| values_of(&record));
            match groups.add(&mut own, values, held) {
                0 => ring.grouped += 1,
                _ => ring.push(&own, &own.encode()),
            }
        }
    }

    /// Adds new consumers and drops those that have left.
    #[cold]
    fn update_consumers(&mut self) {
        let (generation, consumers) = self.hub.consumers();
        self.generation = generation;
        let rings = &mut self.rings;
        rings.retain(|o| consumers.iter().any(|p| Arc::ptr_eq(p, &o.subscription)));
        let disk = self.hub.disk(self.disk);
        for subscription in consumers {
            let known = |o: &ConsumerRing| Arc::ptr_eq(&subscription, &o.subscription);
            if !self.rings.iter().any(known) {
                let ring = ConsumerRing::new(subscription, self.ring, &disk, self.seen);
                self.rings.push(ring);
            }
        }
        self.selected_kinds =
            EventKind::ALL.map(|k| self.rings.iter().any(|o| o.selection.is_of(k)));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
        self.rings.clear();
        self.hub.close_ring(self.ring);
    }
}

/// Groups contain the responses of requests that succeeded.
fn is_grouped(record: &Record) -> bool {
    record.kind == EventKind::Response
}

impl ConsumerRing {
    fn new(
        subscription: Arc<Subscription>,
        ring: usize,
        disk: &DiskWord,
        seen: u64,
    ) -> ConsumerRing {
        let (before, wanted) = (subscription.ring(ring).get(), subscription.wanted());
        let memory = subscription.memory();
        let writer = Writer::new(memory.clone(), ring, before.written);
        // An earlier I/O queue of this number has published it already, and all requests of this
        // one are later.
        if before.all() == 0 {
            writer.since(monotonic_ns());
        }
        let bits = |fold: &FoldWord| fold.clauses.iter().fold(0, |all, at| all | 1 << at);
        let groups = GroupWriter::new(memory.clone(), ring, &wanted.folds);
        let groups = groups.map(|writer| Groups {
            writer,
            clauses: wanted.folds.iter().map(bits).collect(),
        });
        ConsumerRing {
            writer,
            selection: RecordSelection::new(&wanted.clauses, disk),
            groups,
            subscription,
            seen_before: seen,
            before,
            lost: 0,
            grouped: 0,
        }
    }

    #[inline]
    fn push(&mut self, record: &Record, words: &[u64; RECORD_WORDS]) {
        if !self.writer.push(words) {
            self.lost += 1;
            self.writer.drop_one(record.disk);
        }
    }

    /// What became of all events, those of earlier I/O queues included.
    fn totals(&self, seen: u64) -> EventTotals {
        let (before, written) = (&self.before, self.writer.tail());
        let made = written - before.written + self.lost + self.grouped;
        EventTotals {
            written,
            avoided: before.avoided + (seen - self.seen_before) - made,
            lost: before.lost + self.lost,
            grouped: before.grouped + self.grouped,
        }
    }
}
