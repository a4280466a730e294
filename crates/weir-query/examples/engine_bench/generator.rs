//! [`Generator`]: generates requests and responses of ten VMs with two disks each.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use weir_model::{Event, EventKind, Op, Symbol};

const EVENT_GAP_NS: i64 = 5_000;
const VMS: usize = 10;
const DISKS: usize = 2;

/// Generates events: at each tick the response that is due longest, else a new request.
pub struct Generator {
    ts: i64,
    seed: u64,
    req_id: i64,
    vms: Vec<Symbol>,
    vdisks: Vec<Symbol>,
    in_flight: BinaryHeap<Reverse<(i64, i64)>>,
    requests: HashMap<i64, Event>,
}

impl Generator {
    pub fn new() -> Generator {
        Generator {
            ts: 1_700_000_000_000_000_000,
            seed: 42,
            req_id: 0,
            vms: (0..VMS).map(|i| Symbol::new(&format!("vm{i}"))).collect(),
            vdisks: (0..DISKS)
                .map(|i| Symbol::new(&format!("/dev/vd{}", ['a', 'b'][i])))
                .collect(),
            in_flight: BinaryHeap::new(),
            requests: Default::default(),
        }
    }

    /// A number in (0, 1).
    fn uniform(&mut self) -> f64 {
        // splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::MIN_POSITIVE
    }

    /// The next event.
    pub fn event(&mut self) -> Event {
        self.ts += EVENT_GAP_NS;
        let due = self
            .in_flight
            .peek()
            .is_some_and(|Reverse((at, _))| *at <= self.ts);
        if due && let Some(Reverse((_, id))) = self.in_flight.pop() {
            let request = self
                .requests
                .remove(&id)
                .expect("what is in flight was requested");
            return Event {
                ts: self.ts,
                kind: EventKind::Response,
                agent_ts: Some(self.ts),
                ..request
            };
        }
        self.req_id += 1;
        let op = if self.uniform() < 0.6 {
            Op::Read
        } else {
            Op::Write
        };
        let sectors = 8 << (self.uniform() * 6.0) as i64;
        let sector = (self.uniform() * 1e9) as i64;
        let mut event = Event::new(
            self.ts,
            EventKind::Request,
            op,
            self.req_id,
            Some(sector),
            sectors,
        );
        let (vm, vdisk) = (self.uniform() * VMS as f64, self.uniform() * DISKS as f64);
        let (vm, vdisk) = (vm as usize, vdisk as usize);
        event.vm = Some(self.vms[vm]);
        event.vdisk = Some(self.vdisks[vdisk]);
        event.pdisk = event.vdisk;
        event.agent_ts = Some(self.ts);
        // Lognormal, median 1 ms, by Box and Muller.
        let normal =
            (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        let latency_ns = (1e6 * (0.8 * normal).exp()) as i64;
        self.in_flight
            .push(Reverse((self.ts + latency_ns, self.req_id)));
        self.requests.insert(self.req_id, event);
        event
    }
}
