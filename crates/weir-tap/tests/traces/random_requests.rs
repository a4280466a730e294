//! [`Load`]: random requests and responses like those of two disks, for tests and benchmarks of
//! recordings.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use fastrand::Rng;
use weir_model::{Event, EventKind, IoEvent, Nanos, Op, Symbol};

/// In November 2026.
pub const START_NS: Nanos = 1_795_000_000_000_000_000;

/// Mean time between two requests: 300,000 per second.
const GAP_NS: f64 = 3_333.0;

/// Sectors of a disk: 128 GiB.
const DISK_SECTORS: i64 = 1 << 28;

/// Requests of a disk in flight at most.
const IN_FLIGHT_MAX: i64 = 32;

/// How much the requests differ from those of a disk that works.
#[derive(Clone, Copy, Default)]
pub struct Irregularity {
    /// Times are multiples of it, so that events have equal times.
    pub tick_ns: Nanos,
    /// One request of so many is a flush, fails, lacks its response, or is otherwise special.
    pub one_in: Option<usize>,
}

/// Random requests of two disks, whose times in the device vary.
pub struct Load {
    irregularity: Irregularity,
    rng: Rng,
    now: Nanos,
    number: i64,
    pending: BinaryHeap<Reverse<(Nanos, i64)>>,
    responses: HashMap<i64, IoEvent>,
    in_flight: [i64; 2],
    last_sector: [Option<i64>; 2],
    last_issue: [Option<Nanos>; 2],
    devices: [Symbol; 2],
    processes: [(i64, Symbol, Symbol); 4],
}

impl Load {
    /// The load of this seed.
    pub fn new(seed: u64, irregularity: Irregularity) -> Load {
        let process = |n: i64, name: &str| {
            let group = Symbol::new(&format!("/machine.slice/{name}.scope"));
            (2000 + n, Symbol::new(name), group)
        };
        Load {
            irregularity,
            rng: Rng::with_seed(seed),
            now: START_NS,
            number: 0,
            pending: BinaryHeap::new(),
            responses: HashMap::new(),
            in_flight: [0; 2],
            last_sector: [None; 2],
            last_issue: [None; 2],
            devices: ["/dev/sda", "/dev/sdb"].map(Symbol::new),
            processes: [
                process(1, "postgres"),
                process(2, "mysqld"),
                process(3, "fio"),
                process(4, "qemu"),
            ],
        }
    }

    /// A time with an exponential distribution.
    fn time(&mut self, mean_ns: f64) -> Nanos {
        let time = (-mean_ns * (1.0 - self.rng.f64()).ln()) as Nanos;
        let tick = self.irregularity.tick_ns.max(1);
        time / tick * tick
    }

    /// Appends the next request, and the responses until then.
    pub fn request(&mut self, events: &mut Vec<IoEvent>) {
        self.now += self.time(GAP_NS);
        self.respond_until(self.now, events);
        let disk = self.rng.usize(0..2);
        while self.in_flight[disk] >= IN_FLIGHT_MAX {
            let Reverse((due, _)) = *self.pending.peek().expect("requests are in flight");
            self.now = self.now.max(due);
            self.respond_until(self.now, events);
        }
        let event = self.issued(disk);
        self.in_flight[disk] += 1;
        let first = event.sector.expect("it has an extent");
        let last = self.last_sector[disk].replace(first + event.sectors - 1);
        let last_issue = self.last_issue[disk].replace(self.now);
        let wait_ns = 200 + self.time(400.0);
        let service_ns = self.time(60_000.0);
        let service_ns = service_ns + if self.rng.u8(0..8) > 0 { 20_000 } else { 0 };
        let mut response = event;
        response.ts = self.now + service_ns;
        response.kind = EventKind::Response;
        let response = IoEvent {
            wait_ns: Some(wait_ns),
            service_ns: Some(service_ns),
            latency_ns: Some(wait_ns + service_ns),
            in_flight: Some(self.in_flight[disk]),
            seek_sectors: last.map(|last| first - last),
            interarrival_ns: last_issue.map(|last| self.now - last),
            issue_ts: Some(self.now),
            ..IoEvent::new(response)
        };
        let special = self
            .irregularity
            .one_in
            .is_some_and(|n| self.rng.usize(0..n) == 0);
        // As live requests have them.
        let request = IoEvent {
            wait_ns: response.wait_ns,
            in_flight: response.in_flight,
            seek_sectors: response.seek_sectors,
            interarrival_ns: response.interarrival_ns,
            ..IoEvent::new(event)
        };
        let (request, response) = match special {
            true => self.special(request, response),
            false => (Some(request), response),
        };
        self.pending.push(Reverse((response.event.ts, self.number)));
        self.responses.insert(self.number, response);
        events.extend(request);
    }

    /// A request and its response that are special.
    fn special(&mut self, request: IoEvent, response: IoEvent) -> (Option<IoEvent>, IoEvent) {
        let (mut request, mut response) = (request, response);
        match self.rng.usize(0..8) {
            0 => {
                (request.event.sector, response.event.sector) = (None, None);
                response.seek_sectors = None;
                response.interarrival_ns = None;
                (response.wait_ns, response.latency_ns) = (None, None);
            }
            1 => {
                response.event.kind = EventKind::Error;
                response.event.error = Some(5);
            }
            2 => response.event.merges = Some(1),
            3 => response.issue_ts = None,
            4 => {
                response.seek_sectors = Some(1 << 40);
                response.interarrival_ns = Some(-(1 << 50));
            }
            5 => {
                response.service_ns = None;
                // As in traces.
                request = IoEvent::new(request.event);
            }
            6 => {
                response.issue_ts = None;
                return (None, response);
            }
            _ => {
                let vsector = response.event.sector.map(|sector| sector - 2048);
                (request.event.vsector, response.event.vsector) = (vsector, vsector);
                request.event.agent_ts = None;
            }
        }
        (Some(request), response)
    }

    fn issued(&mut self, disk: usize) -> Event {
        self.number += 1;
        let op = [Op::Read, Op::Read, Op::Read, Op::Write][self.rng.usize(0..4)];
        let sectors = [8, 8, 8, 8, 8, 8, 8, 16, 32, 128][self.rng.usize(0..10)];
        let sector = self.rng.i64(0..DISK_SECTORS / 8) * 8;
        let number = self.number;
        let mut event = Event::new(
            self.now,
            EventKind::Request,
            op,
            number,
            Some(sector),
            sectors,
        );
        let (pid, comm, cgroup) = self.processes[self.rng.usize(0..4)];
        event.pdisk = Some(self.devices[disk]);
        event.pid = Some(pid);
        event.comm = Some(comm);
        event.cgroup = Some(cgroup);
        event.cpu = Some(self.rng.i64(0..2));
        event.merges = Some(0);
        event.agent_ts = Some(self.now / 20_000_000 * 20_000_000 + 20_000_000);
        event
    }

    fn respond_until(&mut self, ts: Nanos, events: &mut Vec<IoEvent>) {
        while let Some(&Reverse((due, number))) = self.pending.peek()
            && due <= ts
        {
            self.pending.pop();
            let mut response = self.responses.remove(&number).expect("it is pending");
            let disk = usize::from(response.event.pdisk == Some(self.devices[1]));
            self.in_flight[disk] -= 1;
            response.event.agent_ts = Some(due / 20_000_000 * 20_000_000 + 20_000_000);
            events.push(response);
        }
    }

    /// Appends the responses that are missing.
    pub fn finish(&mut self, events: &mut Vec<IoEvent>) {
        self.respond_until(Nanos::MAX, events);
    }
}
