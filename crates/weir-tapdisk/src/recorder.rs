//! [`Recorder`]: writes records of a lane's requests to the consumers' rings.
//!
//! It belongs to the lane's thread. It never waits, allocates or calls the kernel while requests
//! are processed; after a change of consumers, the next round starts by reading their list. Without
//! consumers, a round costs one load.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use weir_model::{EventKind, Op};
use weir_tap::monotonic_ns;
use weir_tap::tapdisk::layout::{Record, sectors_of};
use weir_tap::tapdisk::ring::Writer;

use crate::hub::{Hub, HubError, Subscription};
use crate::selection::Selection;
use crate::{Outcome, Request};

/// A request when it was received from the guest. Times are CLOCK_MONOTONIC, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The request.
    pub request: Request,
    /// Its number, counted from 1 over all requests of its disk.
    pub id: u64,
    /// When it was taken.
    pub taken_ns: u64,
    /// Requests of its disk in flight, itself included.
    pub in_flight: u32,
    /// First sector minus last sector of the disk's previous request; `None` for a flush and for
    /// the first.
    pub seek_sectors: Option<i64>,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The request, as recorded when it was taken.
    pub taken: Taken,
    /// When it was submitted; `None` if it never was.
    pub submitted_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// The recorder of a lane.
///
/// ```text
/// recorder.begin();        before the first read of the clock
/// recorder.taken(&..);     in time order
/// recorder.ended(&..);
/// recorder.end();          now consumers can see them
/// ```
///
/// Between [`Recorder::begin`] and [`Recorder::end`] consumers cannot know which records will
/// follow, so a lane ends the round before it waits, and begins another afterwards.
#[derive(Debug)]
pub struct Recorder {
    hub: Arc<Hub>,
    disk: u16,
    queue: u16,
    lane: usize,
    generation: u64,
    outlets: Vec<Outlet>,
    /// Whether any consumer may want events of a kind.
    selected_kinds: [bool; EventKind::ALL.len()],
    /// Events while there were consumers.
    seen: u64,
    /// The time of the last one.
    last_ns: u64,
}

/// One consumer, as this lane sees it.
#[derive(Debug)]
struct Outlet {
    // Dropped before the subscription, so that no lane is the last holder of the memory.
    writer: Writer,
    subscription: Arc<Subscription>,
    selection: Selection,
    /// Counts from before: the events that the lane had seen, the records written and lost, and the
    /// events avoided by earlier lanes of this number.
    seen_before: u64,
    tail_before: u64,
    lost_before: u64,
    avoided_before: u64,
    lost: u64,
}

impl Recorder {
    /// The recorder of a lane of disk number `disk`, as returned by [`Hub::register`].
    ///
    /// # Errors
    /// When there are too many lanes.
    pub fn new(hub: &Arc<Hub>, disk: u16, queue: u16) -> Result<Recorder, HubError> {
        Ok(Recorder {
            lane: hub.open_lane(disk)?,
            hub: hub.clone(),
            disk,
            queue,
            generation: 0,
            outlets: Vec::new(),
            selected_kinds: [false; EventKind::ALL.len()],
            seen: 0,
            last_ns: 0,
        })
    }

    /// Begins a round: before the lane reads the clock for the first time.
    #[inline]
    pub fn begin(&mut self) {
        if self.hub.generation() != self.generation {
            self.look_who_is_there();
        }
        if self.outlets.is_empty() {
            return;
        }
        for outlet in &self.outlets {
            outlet.writer.begin();
        }
        // A consumer that has not seen the round begin by now has read the clock before the lane
        // does.
        fence(Ordering::SeqCst);
    }

    /// Records that a request was taken.
    #[inline]
    pub fn taken(&mut self, taken: &Taken) {
        if self.outlets.is_empty() {
            return;
        }
        self.note(taken.taken_ns);
        if self.selected_kinds[EventKind::Request as usize] {
            let record = self.request(taken);
            self.write_record(&record);
        }
    }

    /// Records that a request ended.
    #[inline]
    pub fn ended(&mut self, ended: &Ended) {
        if self.outlets.is_empty() {
            return;
        }
        self.note(ended.ended_ns);
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
                ..self.request(&ended.taken)
            };
            self.write_record(&record);
        }
    }

    /// Ends a round: its records become visible to consumers.
    #[inline]
    pub fn end(&mut self) {
        // The next event may have the same time.
        let published_ns = self.last_ns.saturating_sub(1);
        for outlet in &self.outlets {
            let avoided = outlet.avoided(self.seen);
            outlet.writer.end(published_ns, avoided);
            let counts = outlet.subscription.lane(self.lane);
            counts.set(
                outlet.writer.tail(),
                avoided,
                outlet.lost_before + outlet.lost,
            );
        }
    }

    #[inline]
    fn note(&mut self, ts_ns: u64) {
        self.seen += 1;
        self.last_ns = ts_ns;
    }

    #[inline]
    fn request(&self, taken: &Taken) -> Record {
        let Request { op, fua, .. } = taken.request;
        Record {
            kind: EventKind::Request,
            op,
            fua,
            errno: 0,
            disk: self.disk,
            queue: self.queue,
            id: taken.id,
            ts_ns: taken.taken_ns,
            sector: (op != Op::Flush).then_some(taken.request.sector),
            sectors: sectors_of(taken.request.whole_bytes()),
            in_flight: taken.in_flight,
            taken_ns: taken.taken_ns,
            submitted_ns: None,
            seek_sectors: taken.seek_sectors,
        }
    }

    #[inline]
    fn write_record(&mut self, record: &Record) {
        let words = record.encode();
        for outlet in &mut self.outlets {
            if outlet.selection.holds(record) && !outlet.writer.push(&words) {
                outlet.lost += 1;
                outlet.writer.drop_one(record.disk);
            }
        }
    }

    /// Adds new consumers and drops those that have left.
    #[cold]
    fn look_who_is_there(&mut self) {
        let (generation, present) = self.hub.present();
        self.generation = generation;
        let outlets = &mut self.outlets;
        outlets.retain(|o| present.iter().any(|p| Arc::ptr_eq(p, &o.subscription)));
        let pdisk = self.hub.pdisk(self.disk);
        for subscription in present {
            let known = |o: &Outlet| Arc::ptr_eq(&subscription, &o.subscription);
            if !self.outlets.iter().any(known) {
                let outlet = Outlet::new(subscription, self.lane, pdisk.as_deref(), self.seen);
                self.outlets.push(outlet);
            }
        }
        self.selected_kinds =
            EventKind::ALL.map(|k| self.outlets.iter().any(|o| o.selection.is_of(k)));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
        self.outlets.clear();
        self.hub.close_lane(self.lane);
    }
}

impl Outlet {
    fn new(subscription: Arc<Subscription>, lane: usize, pdisk: Option<&str>, seen: u64) -> Outlet {
        let (tail, avoided, lost) = subscription.lane(lane).get();
        let writer = Writer::new(subscription.memory().clone(), lane, tail);
        // An earlier lane of this number has published it already, and all requests of this one are
        // later.
        if tail + avoided + lost == 0 {
            writer.since(monotonic_ns());
        }
        Outlet {
            writer,
            selection: Selection::new(&subscription.wanted().clauses, pdisk),
            subscription,
            seen_before: seen,
            tail_before: tail,
            lost_before: lost,
            avoided_before: avoided,
            lost: 0,
        }
    }

    /// Events that were not recorded, those of earlier lanes included.
    fn avoided(&self, seen: u64) -> u64 {
        let made = self.writer.tail() - self.tail_before + self.lost;
        self.avoided_before + (seen - self.seen_before) - made
    }
}
