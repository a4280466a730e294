//! [`Track`]: the context of each request (distance, gap, depth), and which end belongs to which
//! request.
//!
//! The input are the requests of a disk and their ends in timestamp order; each is returned with
//! the context that the counting rules of `vscsiStats` define (Ahmad 2007, sections 3.1 to 3.3).
//! Memory is bounded: the ends of the last N requests, and the requests in flight up to
//! [`IN_FLIGHT_MAX`].
//!
//! A request whose completion was not received stops counting as in flight when the count of the
//! source shows it ([`RequestEvent::Lost`]), when its id is reused, or after [`IN_FLIGHT_NS_MAX`].

use std::collections::VecDeque;

use weir_model::{NANOS_PER_SECOND, Nanos};

use crate::event::{IssuedRequest, RequestEvent, Response};
use crate::id_map::IdMap;
use crate::little::Little;
use crate::metric::Class;

/// The largest number of tracked requests in flight; the end of a further one counts as that of an
/// unknown request.
pub const IN_FLIGHT_MAX: usize = 1 << 16;

/// The time in flight after which the completion is assumed to be lost: no driver lets a request
/// wait that long. The live tap has the same bound.
pub const IN_FLIGHT_NS_MAX: Nanos = 300 * NANOS_PER_SECOND;

/// The interval at which requests in flight for too long are removed.
const SWEEP_NS: Nanos = 10 * NANOS_PER_SECOND;

/// The largest number of requests with a seemingly lost completion that are still recognised if it
/// arrives late.
const LOST_MAX: usize = 1 << 10;

/// A request, relative to those before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Issue {
    /// The request itself.
    pub request: IssuedRequest,
    /// First sector minus last sector of the previous request that has sectors.
    pub seek_sectors: Option<i64>,
    /// The same to the previous request of its operation.
    pub seek_of_op_sectors: Option<i64>,
    /// The least such distance in magnitude to the last N requests that have sectors, on a tie to
    /// the later.
    pub seek_closest_sectors: Option<i64>,
    /// Time since the previous request.
    pub gap_ns: Option<Nanos>,
    /// Time since the previous request of its operation.
    pub gap_of_op_ns: Option<Nanos>,
    /// Requests in flight, itself included.
    pub in_flight: i64,
}

/// The end of a request, with its issue if known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// The end itself.
    pub response: Response,
    /// The issue of the request; `None` if it was not received or has been removed.
    pub issue: Option<Issue>,
    /// Requests in flight afterwards.
    pub in_flight: i64,
}

/// An event with its context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// A request was issued.
    Issued(Issue),
    /// A request finished.
    Finished(End),
    /// The completion of a request was not received; it is no longer in flight.
    Lost {
        /// The time of detection.
        ts: Nanos,
        /// Requests in flight afterwards.
        in_flight: i64,
    },
}

/// Tracks the requests of one subject.
#[derive(Clone, Debug)]
pub struct Track {
    /// By [`Class::index`].
    previous: [Previous; Class::ALL.len()],
    /// Last sectors of the last `closest_of` requests that have sectors, the latest last.
    ends: VecDeque<i64>,
    closest_of: usize,
    /// Requests in flight, and the latest [`LOST_MAX`] whose completion seems to be lost.
    open: IdMap<i64, Open>,
    /// The number of entries in `open` that count as in flight.
    in_flight: usize,
    /// The other entries, the earliest first; some of them may have ended since.
    lost: VecDeque<i64>,
    swept: Option<Nanos>,
    forgotten: u64,
    little: Little,
}

/// A request that has not ended.
#[derive(Clone, Copy, Debug)]
struct Open {
    issue: Issue,
    is_lost: bool,
}

/// The last request of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Previous {
    ts: Option<Nanos>,
    last_sector: Option<i64>,
}

impl Track {
    /// Without requests. Closest distances are to the last `closest_of` requests: 16 for
    /// `vscsiStats`, none with 0.
    pub fn new(closest_of: usize) -> Track {
        Track {
            previous: [Previous::default(); Class::ALL.len()],
            ends: VecDeque::new(),
            closest_of,
            open: IdMap::default(),
            in_flight: 0,
            lost: VecDeque::new(),
            swept: None,
            forgotten: 0,
            little: Little::default(),
        }
    }

    /// Adds an event. Events come in timestamp order.
    pub fn take(&mut self, event: &RequestEvent) -> Step {
        self.little.advance(event.ts(), self.in_flight);
        match event {
            RequestEvent::Issued(request) => Step::Issued(self.issue(*request)),
            RequestEvent::Finished(response) => {
                let issue = self.remove(response.id);
                self.little.finish(response, issue.is_some());
                Step::Finished(End {
                    response: *response,
                    issue,
                    in_flight: self.in_flight as i64,
                })
            }
            RequestEvent::Lost { ts, id } => {
                self.lose(*id);
                Step::Lost {
                    ts: *ts,
                    in_flight: self.in_flight as i64,
                }
            }
        }
    }

    /// Little's law: the sum of the times in flight over the integral of the number in flight. 1
    /// where all requests and their ends were received, see [`Little`]; `None` as long as nothing
    /// was in flight.
    pub fn little_ratio(&self) -> Option<f64> {
        let counted = self.open.values().filter(|open| !open.is_lost);
        self.little.ratio(counted.map(|open| open.issue.request.ts))
    }

    /// The number of requests that were removed before their end: too many were in flight, or their
    /// completion was not received.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Removes a request that has ended.
    fn remove(&mut self, id: i64) -> Option<Issue> {
        let open = self.open.remove(&id)?;
        match open.is_lost {
            // Its completion was only late.
            true => self.forgotten -= 1,
            false => self.in_flight -= 1,
        }
        Some(open.issue)
    }

    /// Marks a request whose completion was not received. If it arrives late, the issue is still
    /// known.
    fn lose(&mut self, id: i64) {
        let Some(open) = self.open.get_mut(&id).filter(|open| !open.is_lost) else {
            return;
        };
        open.is_lost = true;
        self.in_flight -= 1;
        self.forgotten += 1;
        self.lost.push_back(id);
        if self.lost.len() > LOST_MAX {
            let id = self.lost.pop_front().expect("it is longer than that");
            if self.open.get(&id).is_some_and(|open| open.is_lost) {
                self.open.remove(&id);
            }
        }
    }

    fn issue(&mut self, request: IssuedRequest) -> Issue {
        self.sweep(request.ts);
        // An id that recurs is in use again: the earlier request's completion was lost.
        if self.open.contains_key(&request.id) {
            self.lose(request.id);
            self.open.remove(&request.id);
        }
        let all = self.previous[Class::All.index()];
        let same = self.previous[Class::Of(request.op).index()];
        let seek = |last: Option<i64>| Some(request.sector?.saturating_sub(last?));
        let issue = Issue {
            request,
            seek_sectors: seek(all.last_sector),
            seek_of_op_sectors: seek(same.last_sector),
            seek_closest_sectors: request.sector.and_then(|first| self.closest(first)),
            gap_ns: all.ts.map(|ts| request.ts.saturating_sub(ts)),
            gap_of_op_ns: same.ts.map(|ts| request.ts.saturating_sub(ts)),
            in_flight: self.in_flight as i64 + 1,
        };
        self.follow(&request);
        if self.in_flight < IN_FLIGHT_MAX {
            let is_lost = false;
            self.open.insert(request.id, Open { issue, is_lost });
            self.in_flight += 1;
        } else {
            self.forgotten += 1;
        }
        issue
    }

    /// Makes `request` the predecessor of the next.
    fn follow(&mut self, request: &IssuedRequest) {
        let last_sector = request
            .sector
            .map(|first| first.saturating_add(request.sectors).saturating_sub(1));
        for class in [Class::All, Class::Of(request.op)] {
            let previous = &mut self.previous[class.index()];
            previous.ts = Some(request.ts);
            previous.last_sector = last_sector.or(previous.last_sector);
        }
        if let Some(last_sector) = last_sector {
            if self.ends.len() == self.closest_of {
                self.ends.pop_front();
            }
            if self.closest_of > 0 {
                self.ends.push_back(last_sector);
            }
        }
    }

    fn closest(&self, first: i64) -> Option<i64> {
        let distances = self
            .ends
            .iter()
            .rev()
            .map(|last| first.saturating_sub(*last));
        // Ties are resolved to the first, which is the latest request.
        distances.min_by_key(|distance| distance.unsigned_abs())
    }

    /// Periodically removes requests that have been in flight for too long.
    fn sweep(&mut self, now: Nanos) {
        let swept = *self.swept.get_or_insert(now);
        if now.saturating_sub(swept) < SWEEP_NS {
            return;
        }
        self.swept = Some(now);
        let is_old = |open: &Open| now.saturating_sub(open.issue.request.ts) > IN_FLIGHT_NS_MAX;
        let expired = |open: &&Open| is_old(open) && !open.is_lost;
        let expired = self.open.values().filter(expired).count();
        self.in_flight -= expired;
        self.forgotten += expired as u64;
        self.open.retain(|_, open| !is_old(open));
    }
}

impl Response {
    /// Whether the time of the end is known. Traces without completions only imply it: which of
    /// their requests were in flight together is not known.
    pub fn is_timed(&self) -> bool {
        self.wait_ns.is_some() || self.service_ns.is_some() || self.latency_ns.is_some()
    }
}
