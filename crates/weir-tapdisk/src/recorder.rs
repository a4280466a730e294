//! [`Recorder`]: takes from a lane what happened to its requests and tells those who asked.
//!
//! It belongs to the lane's thread. Nothing in it waits, allocates or calls the kernel while requests
//! go through; when consumers have come or gone, the next round begins with a look at who is there. With
//! nobody there, a round costs one load.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use weir_model::{EventKind, Op};
use weir_tap::monotonic_ns;
use weir_tap::tapdisk::layout::{Record, sectors_of};
use weir_tap::tapdisk::ring::Writer;

use crate::hub::{Hub, HubError, Subscription};
use crate::selection::Selection;
use crate::{Outcome, Request};

/// A request as it was taken from the guest. Times are CLOCK_MONOTONIC, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// What is to be done.
    pub request: Request,
    /// Its number, counted from 1 on over all requests of its disk.
    pub id: u64,
    /// When it was taken.
    pub taken_ns: u64,
    /// Requests of its disk under way, itself included.
    pub in_flight: u32,
    /// First sector minus last sector of the disk's previous request; `None` for a flush and for the
    /// first.
    pub seek_sectors: Option<i64>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The request, as it was told when it was taken.
    pub taken: Taken,
    /// When it was submitted; `None` if it never was.
    pub submitted_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: u64,
    /// How.
    pub outcome: Outcome,
}

/// What a lane tells its requests to.
///
/// ```text
/// recorder.begin();        before the first look at the clock
/// recorder.taken(&..);     in order of time
/// recorder.ended(&..);
/// recorder.end();          now consumers can see them
/// ```
///
/// Between [`Recorder::begin`] and [`Recorder::end`] consumers cannot know what is still to come, so a
/// lane ends the round before it waits for anything, and begins another afterwards.
#[derive(Debug)]
pub struct Recorder {
    hub: Arc<Hub>,
    disk: u16,
    queue: u16,
    lane: usize,
    generation: u64,
    outlets: Vec<Outlet>,
    /// Somebody may want events of that kind.
    wants: [bool; EventKind::ALL.len()],
    /// Events that came while anybody listened.
    seen: u64,
    /// The last time that came with one.
    last_ns: u64,
}

/// One consumer, as this lane sees it.
#[derive(Debug)]
struct Outlet {
    // Let go before the subscription, so that no lane is the last to hold the memory.
    writer: Writer,
    subscription: Arc<Subscription>,
    selection: Selection,
    /// What was counted before: how many events the lane had seen, records were written and lost, and
    /// earlier lanes of this number had avoided.
    seen_before: u64,
    tail_before: u64,
    lost_before: u64,
    avoided_before: u64,
    lost: u64,
}

impl Recorder {
    /// Of a lane of disk number `disk`, as [`Hub::enlist`] gave it.
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
            wants: [false; EventKind::ALL.len()],
            seen: 0,
            last_ns: 0,
        })
    }

    /// Begins a round: before the lane looks at the clock for the first time.
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
        // Whoever has not seen us begin by now has looked at the clock before we do.
        fence(Ordering::SeqCst);
    }

    /// Tells that a request was taken.
    #[inline]
    pub fn taken(&mut self, taken: &Taken) {
        if self.outlets.is_empty() {
            return;
        }
        self.note(taken.taken_ns);
        if self.wants[EventKind::Request as usize] {
            let record = self.request(taken);
            self.tell(&record);
        }
    }

    /// Tells that a request ended.
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
        if self.wants[kind as usize] {
            let record = Record {
                kind,
                errno,
                ts_ns: ended.ended_ns,
                submitted_ns: ended.submitted_ns,
                ..self.request(&ended.taken)
            };
            self.tell(&record);
        }
    }

    /// Ends a round: what was told since its beginning is there for consumers.
    #[inline]
    pub fn end(&mut self) {
        // The next event may carry the same time.
        let told_ns = self.last_ns.saturating_sub(1);
        for outlet in &self.outlets {
            let avoided = outlet.avoided(self.seen);
            outlet.writer.end(told_ns, avoided);
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
    fn tell(&mut self, record: &Record) {
        let words = record.encode();
        for outlet in &mut self.outlets {
            if outlet.selection.holds(record) && !outlet.writer.push(&words) {
                outlet.lost += 1;
                outlet.writer.drop_one(record.disk);
            }
        }
    }

    /// Takes over who has come and lets go who has left.
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
        self.wants = EventKind::ALL.map(|k| self.outlets.iter().any(|o| o.selection.is_of(k)));
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
        // An earlier lane of this number has said it already, and all of this one's requests are later.
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

    /// Events that were not made into records, those of earlier lanes included.
    fn avoided(&self, seen: u64) -> u64 {
        let made = self.writer.tail() - self.tail_before + self.lost;
        self.avoided_before + (seen - self.seen_before) - made
    }
}
