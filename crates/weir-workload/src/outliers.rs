//! [`OutlierFinder`]: the slowest requests, each with the requests that were at its device while it
//! waited or was served.
//!
//! A request is at its device from its issue to its completion. It overlaps a slow one if it was
//! issued before the slow one completed, and completed after the slow one was inserted into the
//! queue. Partitions belong to the device of the whole disk. Memory is bounded: the requests in
//! flight, the last requests of each device, and those around the slow requests that are kept.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use weir_model::{Nanos, Op, SECTOR_BYTES, Symbol};

use crate::devices::whole_disk;
use crate::event::{IssuedRequest, RequestEvent, Response, Subject};
use crate::profile::SubjectName;
use crate::track::{IN_FLIGHT_MAX, IN_FLIGHT_NS_MAX};

/// The largest number of slow requests that are kept.
pub const OUTLIERS_MAX: usize = 1_000;

/// The largest number of listed requests around a slow one; those with the longest overlap.
pub const NEIGHBOURS_MAX: usize = 200;

/// Completed requests that are kept for each device.
const HISTORY_MAX: usize = 1 << 14;

/// The largest number of devices.
const DEVICES_MAX: usize = 1 << 12;

/// The levels of stream `IOpath`, in the order in which a request crosses them.
pub const LEVELS: [&str; 6] = [
    "vdisk_wait",
    "app_wait",
    "file",
    "block_wait",
    "device",
    "completion",
];

/// The levels of a request of which only these two times are known.
const WAIT_AND_SERVICE: [&str; 2] = ["wait", "service"];

/// The time of a request at each of [`LEVELS`], ns; `None` for a level that it did not cross.
pub type LevelTimes = [Option<Nanos>; LEVELS.len()];

/// Finds the slowest requests of a stream of events in timestamp order.
#[derive(Debug)]
pub struct OutlierFinder {
    limit: usize,
    over_ns: Nanos,
    devices: HashMap<[Option<Symbol>; 3], Device>,
    /// By latency, of equal ones the earlier last.
    kept: BTreeMap<(Nanos, Reverse<u64>), Kept>,
    finished: u64,
    without_latency: u64,
    over: u64,
    first_ns: Option<Nanos>,
    last_ns: Nanos,
}

/// A device and its requests.
#[derive(Debug, Default)]
struct Device {
    in_flight: HashMap<(Subject, i64), Arc<Request>>,
    /// Completed requests, the latest last.
    history: VecDeque<Arc<Request>>,
    /// The latest completion of a request that is no longer in the history.
    removed_ns: Option<Nanos>,
    /// The sector after the last request of each disk.
    next_sector: HashMap<Subject, i64>,
}

/// A request at its device.
#[derive(Debug)]
struct Request {
    id: i64,
    subject: Subject,
    process: Option<Symbol>,
    op: Op,
    sector: Option<i64>,
    sectors: Option<i64>,
    sequential: Option<bool>,
    issued_ns: Nanos,
    queue_depth: Option<u64>,
    end: OnceLock<RequestEnd>,
}

/// The end of a request.
#[derive(Debug)]
struct RequestEnd {
    response: Response,
    levels: Option<LevelTimes>,
}

/// A slow request that is kept.
#[derive(Debug)]
struct Kept {
    request: Arc<Request>,
    around: Vec<RequestGroup>,
    neighbours: Vec<Arc<Request>>,
    overlapping: u64,
    is_complete: bool,
}

/// The slowest requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutlierReport {
    /// The requests that finished.
    pub finished: u64,
    /// Those of them whose latency is not known.
    pub without_latency: u64,
    /// The least latency of an outlier, ns.
    pub over_ns: Nanos,
    /// The requests that were selected and took longer.
    pub over: u64,
    /// The first and last event, ns since the Unix epoch.
    pub interval_ns: Option<(Nanos, Nanos)>,
    /// The slowest of them, the slowest first.
    pub outliers: Vec<Outlier>,
}

/// A slow request, and what was at its device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outlier {
    /// The request.
    pub request: RequestSpan,
    /// The requests of the device in flight when it was issued, itself included.
    pub queue_depth: Option<u64>,
    /// The number of requests that overlap it.
    pub overlapping: u64,
    /// False if the number is a lower bound, since earlier requests were no longer kept.
    pub is_complete: bool,
    /// The overlapping requests by VM, disk, process and operation, the most bytes first.
    pub around: Vec<RequestGroup>,
    /// The overlapping requests, in order of issue; at most [`NEIGHBOURS_MAX`].
    pub neighbours: Vec<RequestSpan>,
}

/// Overlapping requests of one origin and operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestGroup {
    /// The VM and disk.
    #[serde(flatten)]
    pub subject: SubjectName,
    /// The command name of the process.
    pub process: Option<&'static str>,
    /// The operation.
    pub op: &'static str,
    /// Their number.
    pub requests: u64,
    /// Their size.
    pub bytes: i64,
    /// Those that begin where the previous request of their disk ended.
    pub sequential: u64,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestSpan {
    /// The VM and disk.
    #[serde(flatten)]
    pub subject: SubjectName,
    /// The command name of the process.
    pub process: Option<&'static str>,
    /// The operation.
    pub op: &'static str,
    /// First sector.
    pub sector: Option<i64>,
    /// Its size.
    pub bytes: Option<i64>,
    /// Whether it begins where the previous request of its disk ended.
    pub sequential: Option<bool>,
    /// When it was inserted into the queue, ns since the Unix epoch; known when it has finished.
    pub inserted_ns: Option<Nanos>,
    /// When it was issued to the device.
    pub issued_ns: Nanos,
    /// When it finished; `None` if its completion was not received.
    pub finished_ns: Option<Nanos>,
    /// Insert to issue.
    pub wait_ns: Option<Nanos>,
    /// Issue to complete.
    pub service_ns: Option<Nanos>,
    /// Insert to complete.
    pub latency_ns: Option<Nanos>,
    /// The level at which it spent most of the time: one of [`LEVELS`] if these are known, else
    /// `wait` or `service`.
    pub level: Option<&'static str>,
    /// The time at each level that it crossed, ns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<(&'static str, Nanos)>,
    /// It ended with an error.
    pub failed: bool,
}

impl OutlierFinder {
    /// Keeps the `limit` slowest requests (at most [`OUTLIERS_MAX`]) that take longer than
    /// `over_ns`.
    pub fn new(limit: usize, over_ns: Nanos) -> OutlierFinder {
        OutlierFinder {
            limit: limit.min(OUTLIERS_MAX),
            over_ns,
            devices: HashMap::new(),
            kept: BTreeMap::new(),
            finished: 0,
            without_latency: 0,
            over: 0,
            first_ns: None,
            last_ns: 0,
        }
    }

    /// Adds an event of a request of a process. Only requests that are selected can be outliers;
    /// all of them can be around one.
    pub fn take(
        &mut self,
        subject: Subject,
        process: Option<Symbol>,
        event: &RequestEvent,
        is_selected: bool,
    ) {
        self.take_levels(subject, process, event, None, is_selected);
    }

    /// The same with the times of a finished request at each level.
    pub fn take_levels(
        &mut self,
        subject: Subject,
        process: Option<Symbol>,
        event: &RequestEvent,
        levels: Option<LevelTimes>,
        is_selected: bool,
    ) {
        self.first_ns.get_or_insert(event.ts());
        self.last_ns = event.ts();
        let name = device_name(&subject);
        if self.devices.len() >= DEVICES_MAX && !self.devices.contains_key(&name) {
            return;
        }
        let device = self.devices.entry(name).or_default();
        match event {
            RequestEvent::Issued(request) => device.issue(subject, process, request),
            RequestEvent::Lost { id, .. } => drop(device.in_flight.remove(&(subject, *id))),
            RequestEvent::Finished(response) => {
                let response = *response;
                let end = RequestEnd { response, levels };
                let request = device.finish(subject, process, end);
                if is_selected {
                    self.finished += 1;
                    match response.total_ns() {
                        Some(latency_ns) => self.consider(name, request, latency_ns),
                        None => self.without_latency += 1,
                    }
                }
            }
        }
    }

    /// Keeps the request if it is slow enough.
    fn consider(&mut self, device: [Option<Symbol>; 3], request: Arc<Request>, latency_ns: Nanos) {
        if latency_ns <= self.over_ns {
            return;
        }
        self.over += 1;
        let key = (latency_ns, Reverse(self.over));
        let is_slower = self
            .kept
            .first_key_value()
            .is_none_or(|(least, _)| key > *least);
        if self.kept.len() >= self.limit && !is_slower || self.limit == 0 {
            return;
        }
        let device = self.devices.get(&device).expect("its device");
        self.kept.insert(key, device.around(request, latency_ns));
        if self.kept.len() > self.limit {
            self.kept.pop_first();
        }
    }

    /// The requests found so far.
    pub fn report(&self) -> OutlierReport {
        OutlierReport {
            finished: self.finished,
            without_latency: self.without_latency,
            over_ns: self.over_ns,
            over: self.over,
            interval_ns: self.first_ns.map(|first| (first, self.last_ns)),
            outliers: self.kept.values().rev().map(Kept::outlier).collect(),
        }
    }
}

/// The device of a subject; a virtual disk without a known device is a separate device.
fn device_name(subject: &Subject) -> [Option<Symbol>; 3] {
    match subject.pdisk {
        Some(path) => [Some(Symbol::new(whole_disk(path.as_str()))), None, None],
        None => [None, subject.vm, subject.vdisk],
    }
}

impl Device {
    fn issue(&mut self, subject: Subject, process: Option<Symbol>, request: &IssuedRequest) {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            let oldest_ns = request.ts.saturating_sub(IN_FLIGHT_NS_MAX);
            self.in_flight.retain(|_, open| open.issued_ns > oldest_ns);
        }
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return;
        }
        let sequential = request.sector.map(|sector| {
            let next = self
                .next_sector
                .insert(subject, sector.saturating_add(request.sectors));
            next == Some(sector)
        });
        // A request with the same id has ended, although its completion was not received.
        self.in_flight.remove(&(subject, request.id));
        let open = Request {
            id: request.id,
            subject,
            process,
            op: request.op,
            sector: request.sector,
            sectors: Some(request.sectors),
            sequential,
            issued_ns: request.ts,
            queue_depth: Some(self.in_flight.len() as u64 + 1),
            end: OnceLock::new(),
        };
        self.in_flight.insert((subject, request.id), Arc::new(open));
    }

    fn finish(
        &mut self,
        subject: Subject,
        process: Option<Symbol>,
        end: RequestEnd,
    ) -> Arc<Request> {
        let response = &end.response;
        let open = self.in_flight.remove(&(subject, response.id));
        let request = open.unwrap_or_else(|| {
            let service_ns = response.service_ns.or(response.latency_ns);
            Arc::new(Request {
                id: response.id,
                subject,
                process,
                op: response.op,
                sector: None,
                sectors: None,
                sequential: None,
                issued_ns: response.ts.saturating_sub(service_ns.unwrap_or_default()),
                queue_depth: None,
                end: OnceLock::new(),
            })
        });
        // The end is set once: the request has just been removed from those in flight.
        let _ = request.end.set(end);
        if self.history.len() == HISTORY_MAX {
            let removed = self.history.pop_front();
            self.removed_ns = removed.and_then(|removed| removed.finished_ns());
        }
        self.history.push_back(request.clone());
        request
    }

    /// A request that has just finished, with those that overlap it.
    fn around(&self, request: Arc<Request>, latency_ns: Nanos) -> Kept {
        let finished_ns = request.finished_ns().unwrap_or(request.issued_ns);
        let inserted_ns = finished_ns.saturating_sub(latency_ns);
        let ended = self.history.iter().rev();
        let ended = ended.take_while(|other| other.finished_ns() > Some(inserted_ns));
        let overlapping = ended.chain(self.in_flight.values());
        let mut overlapping: Vec<&Arc<Request>> = overlapping
            .filter(|other| other.issued_ns < finished_ns && !Arc::ptr_eq(other, &request))
            .collect();
        let overlap_ns = |other: &Request| {
            let end = other.finished_ns().unwrap_or(finished_ns);
            end.min(finished_ns)
                .saturating_sub(other.issued_ns.max(inserted_ns))
        };
        overlapping.sort_by_key(|other| (Reverse(overlap_ns(other)), other.order()));
        let mut listed: Vec<Arc<Request>> = overlapping
            .iter()
            .take(NEIGHBOURS_MAX)
            .map(|other| (*other).clone())
            .collect();
        listed.sort_by_key(|other| other.order());
        Kept {
            around: groups(&overlapping),
            overlapping: overlapping.len() as u64,
            is_complete: self.removed_ns.is_none_or(|removed| removed <= inserted_ns),
            neighbours: listed,
            request,
        }
    }
}

/// Requests by origin and operation, the most bytes first.
fn groups(requests: &[&Arc<Request>]) -> Vec<RequestGroup> {
    let mut groups: HashMap<(Subject, Option<Symbol>, Op), RequestGroup> = HashMap::new();
    for request in requests {
        let key = (request.subject, request.process, request.op);
        let group = groups.entry(key).or_insert_with(|| RequestGroup {
            subject: SubjectName::from(&request.subject),
            process: request.process.map(Symbol::as_str),
            op: request.op.as_str(),
            requests: 0,
            bytes: 0,
            sequential: 0,
        });
        group.requests += 1;
        group.bytes = group
            .bytes
            .saturating_add(request.bytes().unwrap_or_default());
        group.sequential += u64::from(request.sequential == Some(true));
    }
    let mut groups: Vec<RequestGroup> = groups.into_values().collect();
    groups.sort_by(|a, b| {
        let names = |g: &RequestGroup| (g.subject.clone(), g.process, g.op);
        (b.bytes, b.requests, names(a)).cmp(&(a.bytes, a.requests, names(b)))
    });
    groups
}

impl Request {
    fn finished_ns(&self) -> Option<Nanos> {
        self.response().map(|end| end.ts)
    }

    fn response(&self) -> Option<&Response> {
        self.end.get().map(|end| &end.response)
    }

    /// The time at each level that it crossed, if its parts are known.
    fn levels(&self) -> Vec<(&'static str, Nanos)> {
        let Some(end) = self.end.get() else {
            return Vec::new();
        };
        if let Some(times) = &end.levels {
            let levels = LEVELS.into_iter().zip(times);
            return levels
                .filter_map(|(level, ns)| Some((level, (*ns)?)))
                .collect();
        }
        let parts = end.response.wait_ns.zip(end.response.service_ns);
        let parts = parts.map(|(wait, service)| WAIT_AND_SERVICE.into_iter().zip([wait, service]));
        parts.into_iter().flatten().collect()
    }

    fn bytes(&self) -> Option<i64> {
        self.sectors
            .map(|sectors| sectors.saturating_mul(SECTOR_BYTES))
    }

    fn order(&self) -> (Nanos, i64) {
        (self.issued_ns, self.id)
    }

    fn span(&self) -> RequestSpan {
        let end = self.response();
        let levels = self.levels();
        // Of equal times the first level's.
        let most = levels.iter().rev().max_by_key(|(_, ns)| *ns);
        let latency_ns = end.and_then(Response::total_ns);
        RequestSpan {
            subject: SubjectName::from(&self.subject),
            process: self.process.map(Symbol::as_str),
            op: self.op.as_str(),
            sector: self.sector,
            bytes: self.bytes(),
            sequential: self.sequential,
            inserted_ns: end
                .zip(latency_ns)
                .map(|(end, latency)| end.ts.saturating_sub(latency)),
            issued_ns: self.issued_ns,
            finished_ns: self.finished_ns(),
            wait_ns: end.and_then(|end| end.wait_ns),
            service_ns: end.and_then(|end| end.service_ns),
            latency_ns,
            level: most.map(|(level, _)| *level),
            levels,
            failed: end.is_some_and(|end| end.failed),
        }
    }
}

impl Kept {
    fn outlier(&self) -> Outlier {
        Outlier {
            request: self.request.span(),
            queue_depth: self.request.queue_depth,
            overlapping: self.overlapping,
            is_complete: self.is_complete,
            around: self.around.clone(),
            neighbours: self.neighbours.iter().map(|n| n.span()).collect(),
        }
    }
}
