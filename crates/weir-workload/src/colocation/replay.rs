//! [`replay`]: the requests of several disks at one device, by the simulation of its queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use weir_model::Nanos;

use super::arrivals::{ArrivalCause, ArrivalProcess};
use super::station::{Positions, Station};
use super::stream::DiskStream;

/// A disk whose requests are replayed.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedDisk<'a> {
    /// Its requests.
    pub stream: &'a DiskStream,
    /// Their causes.
    pub process: &'a ArrivalProcess,
}

/// The latency of a simulated request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayedLatency {
    /// The position of its disk.
    pub disk: usize,
    /// When it arrived.
    pub arrival_ns: Nanos,
    /// Its latency.
    pub latency_ns: Nanos,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default)]
pub struct ReplayOutcome {
    /// The requests that completed, in the order of completion.
    pub latencies: Vec<ReplayedLatency>,
    /// Requests whose class was not measured at the device.
    pub unmeasured: u64,
    /// The sum of the demands.
    pub demand_sum_ns: f64,
}

/// The requests that were recorded within `window`, in a station, until the end of the window. The
/// result depends on `seed` only.
pub fn replay(
    disks: &[ReplayedDisk],
    station: &Station,
    window: &Range<Nanos>,
    seed: u64,
) -> ReplayOutcome {
    let mut simulation = Simulation::new(disks, station, window, seed);
    simulation.run(window.end);
    simulation.replay
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Completion {
        disk: usize,
        request: usize,
        arrival_ns: Nanos,
    },
    Arrival {
        disk: usize,
        request: usize,
    },
}

struct Simulation<'a> {
    station: &'a Station,
    disks: Vec<DiskState<'a>>,
    events: BinaryHeap<Reverse<(Nanos, Event)>>,
    /// Requests that wait for a channel, with their classes.
    queue: VecDeque<(usize, usize, Nanos, usize)>,
    occupied: usize,
    positions: Positions,
    random: u64,
    replay: ReplayOutcome,
}

struct DiskState<'a> {
    disk: ReplayedDisk<'a>,
    /// The requests of the window.
    requests: Range<usize>,
    /// The requests that each request of the window causes: positions in `caused`.
    causes_from: Vec<u32>,
    caused: Vec<u32>,
    /// Requests without a cause within the window, and the next of them.
    timed: Vec<usize>,
    timed_next: usize,
    in_flight: usize,
    /// Requests that wait since the disk has as many in flight as it ever has.
    withheld: VecDeque<usize>,
}

impl<'a> DiskState<'a> {
    fn new(disk: ReplayedDisk<'a>, window: &Range<Nanos>) -> DiskState<'a> {
        let requests = disk.stream.within(window);
        let cause = |request: usize| match disk.process.causes[request] {
            ArrivalCause::TimeAfter(of) | ArrivalCause::Completion(of, _)
                if requests.contains(&of) =>
            {
                Some(of)
            }
            _ => None,
        };
        let mut causes_from = vec![0u32; requests.len() + 1];
        let mut timed = Vec::new();
        for request in requests.clone() {
            match cause(request) {
                Some(of) => causes_from[of - requests.start + 1] += 1,
                None => timed.push(request),
            }
        }
        for i in 1..causes_from.len() {
            causes_from[i] += causes_from[i - 1];
        }
        let mut next = causes_from.clone();
        let mut caused = vec![0u32; causes_from[requests.len()] as usize];
        for request in requests.clone() {
            if let Some(of) = cause(request) {
                let at = &mut next[of - requests.start];
                caused[*at as usize] = (request - requests.start) as u32;
                *at += 1;
            }
        }
        DiskState {
            disk,
            requests,
            causes_from,
            caused,
            timed,
            timed_next: 0,
            in_flight: 0,
            withheld: VecDeque::new(),
        }
    }

    fn next_timed(&mut self) -> Option<(Nanos, usize)> {
        let request = *self.timed.get(self.timed_next)?;
        self.timed_next += 1;
        Some((self.disk.stream.requests[request].arrival_ns, request))
    }
}

impl<'a> Simulation<'a> {
    fn new(
        disks: &[ReplayedDisk<'a>],
        station: &'a Station,
        window: &Range<Nanos>,
        seed: u64,
    ) -> Simulation<'a> {
        let states = disks.iter().map(|disk| DiskState::new(*disk, window));
        let mut simulation = Simulation {
            station,
            disks: states.collect(),
            events: BinaryHeap::new(),
            queue: VecDeque::new(),
            occupied: 0,
            positions: Positions::new(disks.len()),
            random: seed,
            replay: ReplayOutcome::default(),
        };
        (0..disks.len()).for_each(|disk| simulation.schedule_timed(disk));
        simulation
    }

    fn schedule(&mut self, at: Nanos, event: Event) {
        self.events.push(Reverse((at, event)));
    }

    /// The next arrival of the disk that no completion causes.
    fn schedule_timed(&mut self, disk: usize) {
        if let Some((at, request)) = self.disks[disk].next_timed() {
            self.schedule(at, Event::Arrival { disk, request });
        }
    }

    fn run(&mut self, end_ns: Nanos) {
        while let Some(Reverse((now, event))) = self.events.pop() {
            if now >= end_ns {
                return;
            }
            match event {
                Event::Arrival { disk, request } => self.arrive(now, disk, request),
                Event::Completion {
                    disk,
                    request,
                    arrival_ns,
                } => {
                    self.complete(now, disk, request, arrival_ns);
                }
            }
        }
    }

    fn arrive(&mut self, now: Nanos, disk: usize, request: usize) {
        let state = &mut self.disks[disk];
        let is_timed = state.timed.get(state.timed_next.wrapping_sub(1)) == Some(&request);
        let process = state.disk.process;
        if process.closed && state.in_flight >= process.in_flight_max {
            state.withheld.push_back(request);
        } else {
            self.admit(now, disk, request);
        }
        if is_timed {
            self.schedule_timed(disk);
        }
    }

    fn admit(&mut self, now: Nanos, disk: usize, request: usize) {
        let state = &mut self.disks[disk];
        state.in_flight += 1;
        let class = self
            .positions
            .class(disk, &state.disk.stream.requests[request]);
        self.replay.unmeasured += u64::from(!self.station.has_measured(class));
        if self.occupied < self.station.channels {
            self.begin(now, disk, request, now, class);
        } else {
            self.queue.push_back((disk, request, now, class));
        }
    }

    fn begin(&mut self, now: Nanos, disk: usize, request: usize, arrival_ns: Nanos, class: usize) {
        let random = next_random(&mut self.random);
        // An operation that the device was never observed with takes as long as it took where it
        // was recorded; it is counted as unmeasured.
        let recorded_ns = self.disks[disk].disk.stream.requests[request].latency_ns;
        let demand_ns = self.station.demand_ns(class, random).unwrap_or(recorded_ns);
        self.occupied += 1;
        self.replay.demand_sum_ns += demand_ns as f64;
        let completion = Event::Completion {
            disk,
            request,
            arrival_ns,
        };
        self.schedule(now.saturating_add(demand_ns), completion);
    }

    fn complete(&mut self, now: Nanos, disk: usize, request: usize, arrival_ns: Nanos) {
        self.occupied -= 1;
        self.replay.latencies.push(ReplayedLatency {
            disk,
            arrival_ns,
            latency_ns: now - arrival_ns,
        });
        if let Some((disk, request, arrival_ns, class)) = self.queue.pop_front() {
            self.begin(now, disk, request, arrival_ns, class);
        }
        let state = &mut self.disks[disk];
        state.in_flight -= 1;
        let withheld = state.withheld.pop_front();
        let number = request - state.requests.start;
        let caused = state.causes_from[number] as usize..state.causes_from[number + 1] as usize;
        for at in caused {
            let state = &self.disks[disk];
            let request = state.requests.start + state.caused[at] as usize;
            let due_ns = match state.disk.process.causes[request] {
                ArrivalCause::Completion(_, think_ns) => now + think_ns,
                _ => now.max(state.disk.stream.requests[request].arrival_ns),
            };
            self.schedule(due_ns, Event::Arrival { disk, request });
        }
        if let Some(request) = withheld {
            self.admit(now, disk, request);
        }
    }
}

/// The next of a sequence of random numbers (Steele, Lea and Flood 2014, "Fast splittable
/// pseudorandom number generators", SplitMix64).
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
