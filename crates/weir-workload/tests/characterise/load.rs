//! Synthetic loads: requests at chosen addresses and times, each with its end.

use fastrand::Rng;
use weir_model::{Nanos, Op, Symbol};
use weir_workload::{
    Characteriser, IssuedRequest, Profile, Report, RequestEvent, Response, Subject,
};

/// A request to be generated.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    pub ts: Nanos,
    pub op: Op,
    pub sector: i64,
    pub sectors: i64,
    pub latency: Nanos,
}

/// Pseudo-random numbers from a seed.
pub struct Random(Rng);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Rng::with_seed(seed))
    }

    pub fn below(&mut self, limit: i64) -> i64 {
        self.0.i64(0..limit)
    }

    /// From 0 to 1, never 0.
    pub fn unit(&mut self) -> f64 {
        1.0 - self.0.f64()
    }
}

/// The disk called `name` of VM `vm` on `device`.
pub fn disk(vm: &str, name: &str, device: &str) -> Subject {
    Subject {
        vm: Some(Symbol::new(vm)),
        vdisk: Some(Symbol::new(name)),
        pdisk: Some(Symbol::new(device)),
        ..Subject::default()
    }
}

/// Reads of 4 KiB at these sectors, 1 ms apart and 0.2 ms long.
pub fn reads(sectors: impl IntoIterator<Item = i64>) -> Vec<Io> {
    let read = |(i, sector): (usize, i64)| Io {
        ts: i as Nanos * 1_000_000,
        op: Op::Read,
        sector,
        sectors: 8,
        latency: 200_000,
    };
    sectors.into_iter().enumerate().map(read).collect()
}

/// The events of these requests in timestamp order.
pub fn events(ios: &[Io]) -> Vec<RequestEvent> {
    let mut events: Vec<RequestEvent> = Vec::new();
    for (id, io) in ios.iter().enumerate() {
        let id = id as i64;
        events.push(RequestEvent::Issued(IssuedRequest {
            ts: io.ts,
            id,
            op: io.op,
            sector: Some(io.sector),
            sectors: io.sectors,
        }));
        events.push(RequestEvent::Finished(Response {
            ts: io.ts + io.latency,
            id,
            op: io.op,
            wait_ns: Some(0),
            service_ns: Some(io.latency),
            latency_ns: Some(io.latency),
            failed: false,
        }));
    }
    events.sort_by_key(RequestEvent::ts);
    events
}

/// The report on several disks.
pub fn report(loads: &[(Subject, Vec<Io>)]) -> Report {
    let mut all: Vec<(Subject, RequestEvent)> = Vec::new();
    for (subject, ios) in loads {
        all.extend(events(ios).into_iter().map(|event| (*subject, event)));
    }
    all.sort_by_key(|(_, event)| event.ts());
    let mut characteriser = Characteriser::default();
    for (subject, event) in &all {
        characteriser.take(subject, event);
    }
    characteriser.report()
}

/// The profile of one disk.
pub fn profile(ios: &[Io]) -> Profile {
    let mut report = report(&[(disk("vm", "/dev/vda", "/dev/sda"), ios.to_vec())]);
    report.profiles.remove(0)
}
