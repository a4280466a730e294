//! [`BlockLayer`]: combines the block layer's actions (blktrace's Q, G, I, M, F, X, D, R, C) into
//! the issue and completion of requests.
//!
//! The times in terms of btt(1), for a request that is neither merged nor requeued:
//!
//! | here | btt | from | to |
//! | --- | --- | --- | --- |
//! | wait | Q2D | Q (where there is none: G, else I) | D |
//! | service | D2C | D | C |
//! | latency | Q2C | Q | C |
//!
//! A row `Q` of `IOstream` corresponds to a D: the issue to the device. A merged request is one
//! request: its wait starts with the bio that created it, `merges` counts the others. A requeued
//! request is also one request: it has one row `Q`, at its first D, and its service starts at the
//! last D. A request that completes in parts ends with the last part. Bio-based devices (dm, md)
//! complete requests that they never issued: such requests have a row `R` with a latency, without
//! wait and service, and no row `Q`.

use weir_model::{Event, EventKind, IoEvent, Nanos, Op, Symbol};

use super::disks::{Disks, disk_of};
use super::table::{REQUESTS_MAX, RequestKey, SectorRange, Table};

/// The action on a bio or request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockAction {
    /// `Q`: a bio was submitted to the device.
    Queue,
    /// `G` or `I`: a request was allocated, or inserted into the scheduler.
    Insert,
    /// `M`: it was merged to the back of a waiting request.
    BackMerge,
    /// `F`: it was merged to the front of a waiting request.
    FrontMerge,
    /// `X`: it was split; the second part starts at this sector.
    Split(i64),
    /// `D`: it was issued to the device.
    Issue,
    /// `R`: the device returned it for a later issue.
    Requeue,
    /// `C`: it, or a part of it, has completed.
    Complete,
}

/// One action of the block layer.
#[derive(Clone, Copy, Debug)]
pub struct Action {
    /// The step.
    pub step: BlockAction,
    /// The operation.
    pub op: Op,
    /// The device.
    pub device: Symbol,
    /// The first sector.
    pub sector: i64,
    /// The number of sectors.
    pub sectors: i64,
    /// The process that was running.
    pub pid: Option<i64>,
    /// Its name.
    pub comm: Option<Symbol>,
    /// The CPU on which it ran.
    pub cpu: Option<i64>,
    /// Letters other than the operation's.
    pub flags: Option<Symbol>,
    /// The error of a completion, positive.
    pub error: Option<i64>,
}

/// A completion without a known request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpaired;

/// A bio or request that waits for its issue.
#[derive(Clone, Debug)]
struct Waiting {
    since: Nanos,
    sectors: i64,
    pid: Option<i64>,
    comm: Option<Symbol>,
    merges: i64,
    /// Its row `Q`, if it was issued before and requeued. Few requests are.
    issued: Option<Box<IoEvent>>,
}

/// A request that was issued to the device.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    row: IoEvent,
    inserted: Option<Nanos>,
    issued: Nanos,
    remaining: i64,
    error: Option<i64>,
}

impl SectorRange for Waiting {
    fn sectors(&self) -> i64 {
        self.sectors
    }
}

impl SectorRange for InFlight {
    fn sectors(&self) -> i64 {
        self.remaining
    }
}

/// The requests of all devices between their first action and their last.
#[derive(Debug)]
pub struct BlockLayer {
    waiting: Table<Waiting>,
    in_flight: Table<InFlight>,
    disks: Disks,
    req_id: i64,
    forgotten: i64,
}

impl Default for BlockLayer {
    fn default() -> BlockLayer {
        BlockLayer {
            waiting: Table::new(REQUESTS_MAX),
            in_flight: Table::new(REQUESTS_MAX),
            disks: Disks::default(),
            req_id: 0,
            forgotten: 0,
        }
    }
}

impl BlockLayer {
    /// Processes one action; actions are in timestamp order. Returns a row if a request was issued
    /// or has completed.
    ///
    /// # Errors
    /// If the action completes an unknown request.
    pub fn follow(&mut self, ts: Nanos, action: &Action) -> Result<Option<IoEvent>, Unpaired> {
        let place = RequestKey::new(action.device, action.op, action.sector);
        match action.step {
            BlockAction::Queue => self.wait(ts, place, action),
            BlockAction::Insert if self.waiting.find(place, action.sectors).is_none() => {
                self.wait(ts, place, action);
            }
            BlockAction::Insert => {}
            BlockAction::BackMerge => self.merge_behind(place, action),
            BlockAction::FrontMerge => self.merge_before(place, action),
            BlockAction::Split(at) => self.split(place, action, at),
            BlockAction::Issue => return Ok(self.issue(ts, place, action)),
            BlockAction::Requeue => self.requeue(place, action),
            BlockAction::Complete => return self.complete(ts, place, action),
        }
        Ok(None)
    }

    /// Returns and resets the number of requests that were discarded because too many were
    /// outstanding.
    pub fn take_forgotten(&mut self) -> i64 {
        std::mem::take(&mut self.forgotten)
    }

    fn wait(&mut self, ts: Nanos, place: RequestKey, action: &Action) {
        let waiting = Waiting {
            since: ts,
            sectors: action.sectors,
            pid: action.pid,
            comm: action.comm,
            merges: 0,
            issued: None,
        };
        self.keep_waiting(place, waiting);
    }

    fn keep_waiting(&mut self, place: RequestKey, waiting: Waiting) {
        self.forgotten += i64::from(self.waiting.insert(place, waiting).is_some());
    }

    fn keep_in_flight(&mut self, place: RequestKey, request: InFlight) {
        if let Some(oldest) = self.in_flight.insert(place, request) {
            self.disks.outstanding(&oldest.row.event, -1);
            self.forgotten += 1;
        }
    }

    /// The merged item is a queued bio, or a waiting request.
    fn take_merged(&mut self, place: RequestKey, action: &Action) -> i64 {
        let merged = self.waiting.take(place, action.sectors);
        1 + merged.map_or(0, |m| m.merges)
    }

    fn merge_behind(&mut self, place: RequestKey, action: &Action) {
        let merges = self.take_merged(place, action);
        if let Some((start, request)) = self.waiting.take_before(place) {
            self.keep_waiting(start, request.grown(action, merges));
        }
    }

    fn merge_before(&mut self, place: RequestKey, action: &Action) {
        let merges = self.take_merged(place, action);
        let behind = place.at(place.sector + action.sectors);
        if let Some(request) = self.waiting.take(behind, 0) {
            self.keep_waiting(place, request.grown(action, merges));
        }
    }

    fn split(&mut self, place: RequestKey, action: &Action, at: i64) {
        let Some(whole) = self.waiting.take(place, action.sectors) else {
            return;
        };
        let first = at - place.sector;
        if first <= 0 || first >= whole.sectors {
            self.keep_waiting(place, whole);
            return;
        }
        let part = |sectors| Waiting {
            sectors,
            ..whole.clone()
        };
        self.keep_waiting(place, part(first));
        self.keep_waiting(place.at(at), part(whole.sectors - first));
    }

    fn issue(&mut self, ts: Nanos, place: RequestKey, action: &Action) -> Option<IoEvent> {
        let waited = self.waiting.take(place, action.sectors);
        let waited = waited.as_ref();
        let inserted = waited.map(|w| w.since);
        if let Some(row) = waited.and_then(|w| w.issued.as_deref().copied()) {
            self.disks.outstanding(&row.event, 1);
            self.fly(place, ts, row, inserted);
            return None;
        }
        let mut event = self.event(ts, EventKind::Request, action, action.sectors, waited);
        event.cpu = action.cpu;
        let issued = self
            .disks
            .issue(disk_of(&event), ts, event.sector, event.sectors);
        let row = IoEvent {
            in_flight: issued.in_flight,
            seek_sectors: issued.seek_sectors,
            interarrival_ns: issued.interarrival_ns,
            ..IoEvent::new(event)
        };
        self.fly(place, ts, row, inserted);
        Some(IoEvent::new(event))
    }

    fn event(
        &mut self,
        ts: Nanos,
        kind: EventKind,
        action: &Action,
        sectors: i64,
        waited: Option<&Waiting>,
    ) -> Event {
        self.req_id += 1;
        let sector = (action.op != Op::Flush).then_some(action.sector);
        let mut event = Event::new(ts, kind, action.op, self.req_id, sector, sectors);
        event.pdisk = Some(action.device);
        event.flags = action.flags;
        event.pid = waited.and_then(|w| w.pid);
        event.comm = waited.and_then(|w| w.comm);
        event.merges = waited.map(|w| w.merges);
        event
    }

    fn fly(&mut self, place: RequestKey, ts: Nanos, row: IoEvent, inserted: Option<Nanos>) {
        let request = InFlight {
            row,
            inserted,
            issued: ts,
            remaining: row.event.sectors,
            error: None,
        };
        self.keep_in_flight(place, request);
    }

    fn requeue(&mut self, place: RequestKey, action: &Action) {
        let Some(request) = self.in_flight.take(place, action.sectors) else {
            return;
        };
        let event = request.row.event;
        self.disks.outstanding(&event, -1);
        let waiting = Waiting {
            since: request.inserted.unwrap_or(request.issued),
            sectors: request.remaining,
            pid: event.pid,
            comm: event.comm,
            merges: event.merges.unwrap_or(0),
            issued: Some(Box::new(request.row)),
        };
        self.keep_waiting(place, waiting);
    }

    fn complete(
        &mut self,
        ts: Nanos,
        place: RequestKey,
        action: &Action,
    ) -> Result<Option<IoEvent>, Unpaired> {
        let Some(mut request) = self.in_flight.take(place, action.sectors) else {
            let waited = self.waiting.take(place, action.sectors);
            return waited
                .map(|bio| Some(self.unissued(ts, bio, action)))
                .ok_or(Unpaired);
        };
        request.error = request.error.or(action.error);
        if action.sectors > 0 && action.sectors < request.remaining {
            request.remaining -= action.sectors;
            self.keep_in_flight(place.at(place.sector + action.sectors), request);
            return Ok(None);
        }
        let mut row = request.row;
        row.issue_ts = Some(row.event.ts);
        self.disks.outstanding(&row.event, -1);
        row.event.ts = ts;
        end(&mut row.event, request.error);
        row.wait_ns = request.inserted.map(|inserted| request.issued - inserted);
        row.service_ns = Some(ts - request.issued);
        row.latency_ns = request.inserted.map(|inserted| ts - inserted);
        Ok(Some(row))
    }

    fn unissued(&mut self, ts: Nanos, bio: Waiting, action: &Action) -> IoEvent {
        let kind = EventKind::Response;
        let mut event = self.event(ts, kind, action, bio.sectors, Some(&bio));
        end(&mut event, action.error);
        IoEvent {
            latency_ns: Some(ts - bio.since),
            ..IoEvent::new(event)
        }
    }
}

impl Waiting {
    /// The request, extended by what was merged into it.
    fn grown(self, action: &Action, merges: i64) -> Waiting {
        Waiting {
            sectors: self.sectors + action.sectors,
            merges: self.merges + merges,
            ..self
        }
    }
}

fn end(event: &mut Event, error: Option<i64>) {
    event.error = error;
    event.kind = match error {
        Some(_) => EventKind::Error,
        None => EventKind::Response,
    };
}
