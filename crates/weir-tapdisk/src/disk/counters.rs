//! [`Counters`]: statistics of a disk since it was opened, by operation.
//!
//! Each lane counts for itself, in memory that only its thread writes; readers add them up. State
//! that all queues of a disk share for every request is in [`Head`].

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use weir_model::Op;

use crate::Outcome;

/// Statistics of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounters {
    /// Ended requests, successful or not.
    pub requests: u64,
    /// Bytes of successful requests.
    pub bytes: u64,
    /// Requests that failed (`E`).
    pub errors: u64,
    /// Requests that are not supported (`N`).
    pub unsupported: u64,
    /// Sum of the latencies, from taking a request to its end.
    pub latency_ns: u64,
}

/// Statistics of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// In the order of [`Op::ALL`].
    pub ops: [OpCounters; 5],
    /// Requests that were taken and have not ended.
    pub in_flight: u64,
}

impl Counters {
    /// Those of one operation.
    pub fn of(&self, op: Op) -> OpCounters {
        self.ops[op as usize]
    }
}

/// The state that all queues of a disk access for every request, on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Head {
    in_flight: AtomicI64,
    /// Last sector of the newest request with a location; [`NOWHERE`] before the first.
    last_sector: AtomicI64,
}

const NOWHERE: i64 = i64::MIN;

impl Head {
    pub(crate) fn new() -> Head {
        Head {
            in_flight: AtomicI64::new(0),
            last_sector: AtomicI64::new(NOWHERE),
        }
    }

    /// Counts a request; returns the number in flight, this one included.
    pub(crate) fn enter(&self) -> u32 {
        let others = self.in_flight.fetch_add(1, Relaxed);
        u32::try_from(others + 1).unwrap_or(u32::MAX)
    }

    pub(crate) fn leave(&self, requests: usize) {
        self.in_flight.fetch_sub(requests as i64, Relaxed);
    }

    /// Moves to a request's sectors; returns the distance from the last sector of the previous
    /// request: 1 for a sequential one. `None` for the first.
    pub(crate) fn move_to(&self, sector: u64, sectors: u64) -> Option<i64> {
        let first = sector as i64;
        let last = first + sectors as i64 - 1;
        let before = self.last_sector.swap(last, Relaxed);
        (before != NOWHERE).then(|| first - before)
    }
}

/// The counters of one lane. Only its thread writes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LaneCounters {
    ops: [Cells; 5],
}

#[derive(Debug, Default)]
struct Cells {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    unsupported: AtomicU64,
    latency_ns: AtomicU64,
}

/// Adds without a locked instruction, as only one thread writes.
fn add(cell: &AtomicU64, amount: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl LaneCounters {
    pub(crate) fn count(&self, op: Op, bytes: u64, outcome: Outcome, latency_ns: u64) {
        let cells = &self.ops[op as usize];
        add(&cells.requests, 1);
        add(&cells.latency_ns, latency_ns);
        match outcome {
            Outcome::Done => add(&cells.bytes, bytes),
            Outcome::Failed(_) => add(&cells.errors, 1),
            Outcome::Unsupported => add(&cells.unsupported, 1),
        }
    }

    fn read(&self) -> [OpCounters; 5] {
        std::array::from_fn(|op| {
            let cells = &self.ops[op];
            OpCounters {
                requests: cells.requests.load(Relaxed),
                bytes: cells.bytes.load(Relaxed),
                errors: cells.errors.load(Relaxed),
                unsupported: cells.unsupported.load(Relaxed),
                latency_ns: cells.latency_ns.load(Relaxed),
            }
        })
    }
}

/// The counters of all lanes of a disk, closed ones included.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) head: Head,
    lanes: Mutex<Lanes>,
}

#[derive(Debug, Default)]
struct Lanes {
    here: Vec<Arc<LaneCounters>>,
    /// The sums of closed lanes.
    closed: [OpCounters; 5],
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger {
            head: Head::new(),
            lanes: Mutex::default(),
        }
    }

    pub(crate) fn open(&self) -> Arc<LaneCounters> {
        let counters = Arc::new(LaneCounters::default());
        self.lanes().here.push(Arc::clone(&counters));
        counters
    }

    pub(crate) fn close(&self, counters: &Arc<LaneCounters>) {
        let mut lanes = self.lanes();
        let Some(place) = lanes.here.iter().position(|c| Arc::ptr_eq(c, counters)) else {
            return;
        };
        let last = lanes.here.swap_remove(place).read();
        for (closed, last) in lanes.closed.iter_mut().zip(last) {
            *closed = sum(*closed, last);
        }
    }

    pub(crate) fn read(&self) -> Counters {
        let lanes = self.lanes();
        let mut ops = lanes.closed;
        for lane in &lanes.here {
            for (total, counted) in ops.iter_mut().zip(lane.read()) {
                *total = sum(*total, counted);
            }
        }
        let in_flight = self.head.in_flight.load(Relaxed);
        let in_flight = u64::try_from(in_flight).unwrap_or(0);
        Counters { ops, in_flight }
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, Lanes> {
        // A panic with the lock held has at worst left a lane uncounted.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum(a: OpCounters, b: OpCounters) -> OpCounters {
    OpCounters {
        requests: a.requests.wrapping_add(b.requests),
        bytes: a.bytes.wrapping_add(b.bytes),
        errors: a.errors.wrapping_add(b.errors),
        unsupported: a.unsupported.wrapping_add(b.unsupported),
        latency_ns: a.latency_ns.wrapping_add(b.latency_ns),
    }
}
