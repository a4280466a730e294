//! [`Track`]: what each request is to those before it (distance, gap, depth), and which end is whose.
//!
//! A disk's requests and their ends go in, in order of time; each comes out with what the counting rules
//! of `vscsiStats` say of it (Ahmad 2007, sections 3.1 to 3.3). Memory is bounded: the ends of the last N
//! requests, and the requests in flight up to [`IN_FLIGHT_MAX`].

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use weir_model::{NANOS_PER_SECOND, Nanos};

use crate::event::{Event, Request, Response};
use crate::metric::Class;

/// Most requests in flight that are remembered; the end of a further one counts as that of an unknown one.
pub const IN_FLIGHT_MAX: usize = 1 << 16;

/// After so long in flight a request's end is taken for lost, so that what is lost does not add up.
const IN_FLIGHT_NS_MAX: Nanos = 600 * NANOS_PER_SECOND;

/// How often requests that are in flight for too long are looked for.
const SWEEP_NS: Nanos = 60 * NANOS_PER_SECOND;

/// A request, and what it is to those before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Issue {
    /// The request itself.
    pub request: Request,
    /// First sector minus last sector of the previous request that has sectors.
    pub seek_sectors: Option<i64>,
    /// The same to the previous request of its operation.
    pub seek_of_op_sectors: Option<i64>,
    /// The least such distance in magnitude to the last N requests that have sectors, on a tie to the later.
    pub seek_closest_sectors: Option<i64>,
    /// Time since the previous request.
    pub gap_ns: Option<Nanos>,
    /// Time since the previous request of its operation.
    pub gap_of_op_ns: Option<Nanos>,
    /// Requests in flight, itself included.
    pub in_flight: i64,
}

/// The end of a request, with its issue where that was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// The end itself.
    pub response: Response,
    /// The request's issue; `None` when it was not seen, or forgotten.
    pub issue: Option<Issue>,
}

/// An event with its context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// A request was issued.
    Issued(Issue),
    /// A request finished.
    Finished(End),
}

/// Follows the requests of one subject.
#[derive(Clone, Debug)]
pub struct Track {
    /// By [`Class::index`].
    previous: [Previous; Class::ALL.len()],
    /// Last sectors of the last `closest_of` requests that have sectors, the latest last.
    ends: VecDeque<i64>,
    closest_of: usize,
    in_flight: HashMap<i64, Issue, BuildHasherDefault<IdHasher>>,
    swept: Option<Nanos>,
    forgotten: u64,
}

/// The last request of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Previous {
    ts: Option<Nanos>,
    last_sector: Option<i64>,
}

impl Track {
    /// Of a disk of which nothing was seen yet. Closest distances are to the last `closest_of` requests: 16
    /// for `vscsiStats`, none with 0.
    pub fn new(closest_of: usize) -> Track {
        Track {
            previous: [Previous::default(); Class::ALL.len()],
            ends: VecDeque::new(),
            closest_of,
            in_flight: HashMap::default(),
            swept: None,
            forgotten: 0,
        }
    }

    /// Takes an event in. Events come in order of time.
    pub fn take(&mut self, event: &Event) -> Step {
        match event {
            Event::Issued(request) => Step::Issued(self.issue(*request)),
            Event::Finished(response) => Step::Finished(End {
                response: *response,
                issue: self.in_flight.remove(&response.id),
            }),
        }
    }

    /// How many requests were not remembered until their end: too many were in flight, or it did not come
    /// within ten minutes, or the id was in use again before it came.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn issue(&mut self, request: Request) -> Issue {
        self.sweep(request.ts);
        // An id that comes again is in use again: the earlier request's end was lost.
        self.forgotten += u64::from(self.in_flight.remove(&request.id).is_some());
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
            in_flight: self.in_flight.len() as i64 + 1,
        };
        self.follow(&request);
        if self.in_flight.len() < IN_FLIGHT_MAX {
            self.in_flight.insert(request.id, issue);
        } else {
            self.forgotten += 1;
        }
        issue
    }

    /// Makes `request` the one before the next.
    fn follow(&mut self, request: &Request) {
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
        // Of equals the first counts, and the latest request comes first.
        distances.min_by_key(|distance| distance.unsigned_abs())
    }

    /// Forgets now and then what is in flight for too long.
    fn sweep(&mut self, now: Nanos) {
        let swept = *self.swept.get_or_insert(now);
        if now.saturating_sub(swept) < SWEEP_NS {
            return;
        }
        self.swept = Some(now);
        let before = self.in_flight.len();
        let is_young = |issue: &Issue| now.saturating_sub(issue.request.ts) <= IN_FLIGHT_NS_MAX;
        self.in_flight.retain(|_, issue| is_young(issue));
        self.forgotten += (before - self.in_flight.len()) as u64;
    }
}

impl Response {
    /// Whether it tells when the request ended. Traces without completions know only that it did: their
    /// requests are not known to have been in flight together.
    pub fn is_timed(&self) -> bool {
        self.wait_ns.is_some() || self.service_ns.is_some() || self.latency_ns.is_some()
    }
}

/// Hashes one id. Ids are the tap's own numbers, which nobody chooses to collide.
#[derive(Clone, Copy, Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_i64(byte.into()));
    }

    /// Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4), both halves of the product.
    fn write_i64(&mut self, id: i64) {
        let product = u128::from(self.0 ^ id as u64) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
