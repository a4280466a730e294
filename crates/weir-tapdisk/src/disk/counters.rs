//! [`DiskStatistics`]: statistics of a disk since it was opened, by operation.
//!
//! Each I/O queue counts for itself, in memory that only its thread writes; readers add them up.
//! State that all queues of a disk share for every request is in [`SharedState`].

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use weir_model::Op;

use crate::Outcome;

/// Statistics of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStatistics {
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
pub struct DiskStatistics {
    /// In the order of [`Op::ALL`].
    pub ops: [OpStatistics; 5],
    /// Requests that were received and have not ended.
    pub in_flight: u64,
}

impl DiskStatistics {
    /// Those of one operation.
    pub fn of(&self, op: Op) -> OpStatistics {
        self.ops[op as usize]
    }
}

/// The state that all queues of a disk access for every request, on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct SharedState {
    in_flight: AtomicI64,
    /// Last sector of the newest request with a location; [`NO_SECTOR`] before the first.
    last_sector: AtomicI64,
    /// When the latest request was received, ns of CLOCK_MONOTONIC; 0 before the first.
    last_received_ns: AtomicU64,
}

const NO_SECTOR: i64 = i64::MIN;

impl SharedState {
    pub(crate) fn new() -> SharedState {
        SharedState {
            in_flight: AtomicI64::new(0),
            last_sector: AtomicI64::new(NO_SECTOR),
            last_received_ns: AtomicU64::new(0),
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
        (before != NO_SECTOR).then(|| first - before)
    }

    /// Receives a request; returns the time since the latest one. `None` for the first. It is 0 if
    /// both were read from the queue at once, or another queue has received the other one later; the
    /// sum is exact.
    pub(crate) fn arrive(&self, received_ns: u64) -> Option<u64> {
        let before = self.last_received_ns.fetch_max(received_ns, Relaxed);
        (before != 0).then(|| received_ns.saturating_sub(before))
    }
}

/// The counters of one I/O queue. Only its thread writes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct QueueCounters {
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

impl QueueCounters {
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

    fn read(&self) -> [OpStatistics; 5] {
        std::array::from_fn(|op| {
            let cells = &self.ops[op];
            OpStatistics {
                requests: cells.requests.load(Relaxed),
                bytes: cells.bytes.load(Relaxed),
                errors: cells.errors.load(Relaxed),
                unsupported: cells.unsupported.load(Relaxed),
                latency_ns: cells.latency_ns.load(Relaxed),
            }
        })
    }
}

/// The counters of all I/O queues of a disk, closed ones included.
#[derive(Debug)]
pub(crate) struct DiskCounters {
    pub(crate) head: SharedState,
    queues: Mutex<QueueList>,
}

#[derive(Debug, Default)]
struct QueueList {
    open: Vec<Arc<QueueCounters>>,
    /// The sums of closed I/O queues.
    closed: [OpStatistics; 5],
}

impl DiskCounters {
    pub(crate) fn new() -> DiskCounters {
        DiskCounters {
            head: SharedState::new(),
            queues: Mutex::default(),
        }
    }

    pub(crate) fn open(&self) -> Arc<QueueCounters> {
        let counters = Arc::new(QueueCounters::default());
        self.queues().open.push(Arc::clone(&counters));
        counters
    }

    pub(crate) fn close(&self, counters: &Arc<QueueCounters>) {
        let mut queues = self.queues();
        let Some(position) = queues.open.iter().position(|c| Arc::ptr_eq(c, counters)) else {
            return;
        };
        let last = queues.open.swap_remove(position).read();
        for (closed, last) in queues.closed.iter_mut().zip(last) {
            *closed = sum(*closed, last);
        }
    }

    pub(crate) fn read(&self) -> DiskStatistics {
        let queues = self.queues();
        let mut ops = queues.closed;
        for queue in &queues.open {
            for (total, counted) in ops.iter_mut().zip(queue.read()) {
                *total = sum(*total, counted);
            }
        }
        let in_flight = self.head.in_flight.load(Relaxed);
        let in_flight = u64::try_from(in_flight).unwrap_or(0);
        DiskStatistics { ops, in_flight }
    }

    fn queues(&self) -> std::sync::MutexGuard<'_, QueueList> {
        // A panic with the lock held has at worst left an I/O queue uncounted.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum(a: OpStatistics, b: OpStatistics) -> OpStatistics {
    OpStatistics {
        requests: a.requests.wrapping_add(b.requests),
        bytes: a.bytes.wrapping_add(b.bytes),
        errors: a.errors.wrapping_add(b.errors),
        unsupported: a.unsupported.wrapping_add(b.unsupported),
        latency_ns: a.latency_ns.wrapping_add(b.latency_ns),
    }
}
