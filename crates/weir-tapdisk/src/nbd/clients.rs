//! [`Clients`]: the connections of a server, and which of them is closed when there is no room for
//! another.
//!
//! A connection is idle while it has no request at the disk and transfers no data. Idle connections
//! stay open as long as there is room: a VM without I/O has one. When all slots are in use, a new
//! client replaces an idle one. Connections that have sent no request are closed first, then those
//! of the process with the most connections, and of these the one that has been idle longest. So a
//! VM with its one used connection is closed last; and the connections of the process for which the
//! disk is served are never closed.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use super::NbdOptions;

/// The activity of a connection. Its thread writes, the server reads.
#[derive(Debug)]
pub struct Activity {
    started_at: Instant,
    /// When data were last transferred, in milliseconds after `started_at`.
    last_transfer_ms: AtomicU64,
    has_sent_request: AtomicBool,
    open: AtomicUsize,
}

impl Activity {
    /// The activity of a new connection.
    pub fn new() -> Activity {
        Activity {
            started_at: Instant::now(),
            last_transfer_ms: AtomicU64::new(0),
            has_sent_request: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        }
    }

    /// Records a transfer; `answered` requests have ended, and the disk has `open` others.
    pub fn note(&self, answered: usize, open: usize) {
        let now_ms = u64::try_from(self.started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_transfer_ms.store(now_ms, Relaxed);
        self.open.store(open, Relaxed);
        if answered + open > 0 {
            self.has_sent_request.store(true, Relaxed);
        }
    }

    /// How long it has been idle; `None` while it has a request at the disk.
    fn idle(&self) -> Option<Duration> {
        let moved = Duration::from_millis(self.last_transfer_ms.load(Relaxed));
        let idle = self.started_at.elapsed().saturating_sub(moved);
        (self.open.load(Relaxed) == 0).then_some(idle)
    }
}

/// A client that is connected, or about to be.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its socket.
    pub socket: Arc<OwnedFd>,
    /// Its process, if the socket provides it.
    pub process: Option<u32>,
    /// Its activity.
    pub activity: Arc<Activity>,
}

/// The connected clients, by number.
pub struct Clients<'scope> {
    slots: Vec<Option<Slot<'scope>>>,
    options: NbdOptions,
}

struct Slot<'scope> {
    /// The socket is closed as soon as its thread has ended.
    socket: Weak<OwnedFd>,
    process: Option<u32>,
    activity: Arc<Activity>,
    thread: ScopedJoinHandle<'scope, ()>,
    /// It was closed to make room.
    evicted: bool,
}

/// The slot for a new client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientSlot {
    /// A free slot of this number.
    Free(usize),
    /// A slot of this number, for which a connection was closed that had been idle for this time.
    Made(usize, Duration),
    /// All slots are in use, and no connection is idle.
    None,
}

impl<'scope> Clients<'scope> {
    /// No client yet.
    pub fn new(options: &NbdOptions) -> Self {
        Clients {
            slots: Vec::new(),
            options: *options,
        }
    }

    /// Finds a slot for a client of `process`, and closes an idle connection if there is none.
    pub fn slot_for(&mut self, process: Option<u32>) -> ClientSlot {
        for slot in &mut self.slots {
            // Its end is already reported; a panic is on standard error.
            let ended = slot.take_if(|slot| slot.thread.is_finished());
            let _ = ended.map(|slot| slot.thread.join());
        }
        let connected = self.slots.iter().flatten().filter(|p| !p.evicted).count();
        let connections_max = usize::from(self.options.connections_max);
        let free = self.slots.iter().position(Option::is_none);
        let free = free.unwrap_or(self.slots.len());
        if connected < connections_max {
            return ClientSlot::Free(free);
        }
        // Closed connections may take a moment to end, and count up to twice the maximum until
        // then.
        if free >= 2 * connections_max {
            return ClientSlot::None;
        }
        let (owner, idle) = (self.options.owner, self.options.idle);
        let is_owner = owner.is_some() && process == owner;
        let idle_min = if is_owner { Duration::ZERO } else { idle };
        let candidates: Vec<Option<Candidate>> = self
            .slots
            .iter()
            .map(|slot| Candidate::of(slot.as_ref()?))
            .collect();
        let Some((number, idle)) = eviction_candidate(&candidates, owner, idle_min) else {
            return ClientSlot::None;
        };
        let slot = self.slots[number].as_mut().expect("it is a candidate");
        slot.evicted = true;
        if let Some(socket) = slot.socket.upgrade() {
            // It fails only where the client has already disconnected.
            let _ = shutdown(&*socket, Shutdown::Both);
        }
        ClientSlot::Made(free, idle)
    }

    /// Puts a client into the slot that was found for it.
    pub fn enter(&mut self, number: usize, client: Client, thread: ScopedJoinHandle<'scope, ()>) {
        if self.slots.len() <= number {
            self.slots.resize_with(number + 1, || None);
        }
        self.slots[number] = Some(Slot {
            socket: Arc::downgrade(&client.socket),
            process: client.process,
            activity: client.activity,
            thread,
            evicted: false,
        });
    }
}

/// The properties by which a connection is chosen to be closed.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    process: Option<u32>,
    has_sent_request: bool,
    idle: Option<Duration>,
}

impl Candidate {
    fn of(slot: &Slot) -> Option<Candidate> {
        (!slot.evicted).then(|| Candidate {
            process: slot.process,
            has_sent_request: slot.activity.has_sent_request.load(Relaxed),
            idle: slot.activity.idle(),
        })
    }
}

/// The connection to close for another one, and how long it has been idle; `None` if each one is in
/// use, idle for less than `idle_min`, or of the process `owner`.
fn eviction_candidate(
    candidates: &[Option<Candidate>],
    owner: Option<u32>,
    idle_min: Duration,
) -> Option<(usize, Duration)> {
    let connections_of = |process: Option<u32>| {
        let same = candidates.iter().flatten().filter(|c| c.process == process);
        same.count()
    };
    let order = candidates.iter().enumerate().filter_map(|(number, found)| {
        let candidate = found.as_ref()?;
        let idle = candidate.idle?;
        let is_owner = owner.is_some() && candidate.process == owner;
        let rank = (
            !candidate.has_sent_request,
            connections_of(candidate.process),
            idle,
        );
        (!is_owner).then_some((rank, number))
    });
    // If the first in this order is not idle for long enough, no other one is closed instead: many
    // clients that send no requests do not replace an idle VM.
    let ((_, _, idle), number) = order.max()?;
    (idle >= idle_min).then_some((number, idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Process, whether it has sent a request, and the seconds for which it has been idle.
    fn evicted(connections: &[(u32, bool, Option<u64>)], owner: Option<u32>) -> Option<usize> {
        let candidate = |(process, has_sent_request, idle_s): &(u32, bool, Option<u64>)| {
            Some(Candidate {
                process: Some(*process),
                has_sent_request: *has_sent_request,
                idle: idle_s.map(Duration::from_secs),
            })
        };
        let candidates: Vec<_> = connections.iter().map(candidate).collect();
        eviction_candidate(&candidates, owner, Duration::from_secs(30)).map(|(number, _)| number)
    }

    #[test]
    fn clients_without_requests_are_replaced_first_and_an_idle_vm_last() {
        let vm = (1, true, Some(100_000));
        assert_eq!(
            evicted(&[vm, (2, false, Some(40)), (2, false, Some(50))], None),
            Some(2)
        );
        // A process with abandoned connections is chosen before one with a single connection.
        assert_eq!(
            evicted(&[vm, (2, true, Some(40)), (2, true, Some(50))], None),
            Some(2)
        );
        assert_eq!(
            evicted(&[vm, (2, true, Some(40)), (3, true, Some(50))], None),
            Some(0)
        );
        assert_eq!(
            evicted(&[vm, (2, true, None), (3, true, Some(29))], None),
            Some(0)
        );
    }

    #[test]
    fn busy_clients_and_the_owner_are_not_replaced() {
        assert_eq!(
            evicted(&[(1, true, None), (2, false, Some(29))], None),
            None
        );
        assert_eq!(
            evicted(&[(1, true, Some(100_000)), (2, false, Some(5))], None),
            None
        );
        let vm = (1, false, Some(100_000));
        assert_eq!(evicted(&[vm, (2, true, Some(31))], Some(1)), Some(1));
        assert_eq!(evicted(&[vm, vm], Some(1)), None);
        assert_eq!(evicted(&[], None), None);
    }
}
