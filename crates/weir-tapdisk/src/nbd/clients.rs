//! [`Clients`]: the connections of a server, and which of them is closed when there is no room for
//! another.
//!
//! A connection is idle while it has no request at the disk and no byte moves. Idle connections are
//! left alone as long as there is room: a VM that does no I/O has one. When all places are used, a
//! new client gets the place of an idle one. First those are closed that have sent no request, then
//! those of the process that has most of them, and of these the one that has been idle longest. So
//! a VM, with its one connection that it has used, yields last; and the process for which the disk
//! is served does not yield at all.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use super::NbdOptions;

/// What a connection does. Its thread writes, the server reads.
#[derive(Debug)]
pub struct Activity {
    begun: Instant,
    /// When something moved last, in milliseconds after `begun`.
    moved_ms: AtomicU64,
    has_asked: AtomicBool,
    open: AtomicUsize,
}

impl Activity {
    /// That of a connection that was just accepted.
    pub fn new() -> Activity {
        Activity {
            begun: Instant::now(),
            moved_ms: AtomicU64::new(0),
            has_asked: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        }
    }

    /// Bytes came or went; `answered` requests have ended, and the disk has `open` others.
    pub fn note(&self, answered: usize, open: usize) {
        let now_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(now_ms, Relaxed);
        self.open.store(open, Relaxed);
        if answered + open > 0 {
            self.has_asked.store(true, Relaxed);
        }
    }

    /// How long it has been idle; `None` while the disk has a request of it.
    fn idle(&self) -> Option<Duration> {
        let moved = Duration::from_millis(self.moved_ms.load(Relaxed));
        let idle = self.begun.elapsed().saturating_sub(moved);
        (self.open.load(Relaxed) == 0).then_some(idle)
    }
}

/// A client that is connected, or is about to be.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its socket.
    pub socket: Arc<OwnedFd>,
    /// Its process, where the socket tells.
    pub process: Option<u32>,
    /// What it does.
    pub activity: Arc<Activity>,
}

/// The clients that are connected, by number.
pub struct Clients<'scope> {
    places: Vec<Option<Place<'scope>>>,
    options: NbdOptions,
}

struct Place<'scope> {
    /// The socket is closed as soon as its thread has ended.
    socket: Weak<OwnedFd>,
    process: Option<u32>,
    activity: Arc<Activity>,
    thread: ScopedJoinHandle<'scope, ()>,
    /// It was closed to make room.
    yielded: bool,
}

/// What a new client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// A place of this number.
    Free(usize),
    /// The same; a connection was closed for it that had been idle for so long.
    Made(usize, Duration),
    /// None: all places are used, and no connection is idle.
    None,
}

impl<'scope> Clients<'scope> {
    /// No client yet.
    pub fn new(options: &NbdOptions) -> Self {
        Clients {
            places: Vec::new(),
            options: *options,
        }
    }

    /// Finds room for a client of `process`, and closes an idle connection if there is none else.
    pub fn room_for(&mut self, process: Option<u32>) -> Room {
        for place in &mut self.places {
            // How it ended is reported already; a panic is on standard error.
            let ended = place.take_if(|place| place.thread.is_finished());
            let _ = ended.map(|place| place.thread.join());
        }
        let connected = self.places.iter().flatten().filter(|p| !p.yielded).count();
        let connections_max = usize::from(self.options.connections_max);
        let free = self.places.iter().position(Option::is_none);
        let free = free.unwrap_or(self.places.len());
        if connected < connections_max {
            return Room::Free(free);
        }
        // Connections that were closed may take a moment to end, and count twice that long.
        if free >= 2 * connections_max {
            return Room::None;
        }
        let (owner, idle) = (self.options.owner, self.options.idle);
        let is_owner = owner.is_some() && process == owner;
        let idle_min = if is_owner { Duration::ZERO } else { idle };
        let candidates: Vec<Option<Candidate>> = self
            .places
            .iter()
            .map(|place| Candidate::of(place.as_ref()?))
            .collect();
        let Some((number, idle)) = first_to_yield(&candidates, owner, idle_min) else {
            return Room::None;
        };
        let place = self.places[number].as_mut().expect("it is a candidate");
        place.yielded = true;
        if let Some(socket) = place.socket.upgrade() {
            // It fails only where the client has gone by itself.
            let _ = shutdown(&*socket, Shutdown::Both);
        }
        Room::Made(free, idle)
    }

    /// Puts a client at the place that was found for it.
    pub fn enter(&mut self, number: usize, client: Client, thread: ScopedJoinHandle<'scope, ()>) {
        if self.places.len() <= number {
            self.places.resize_with(number + 1, || None);
        }
        self.places[number] = Some(Place {
            socket: Arc::downgrade(&client.socket),
            process: client.process,
            activity: client.activity,
            thread,
            yielded: false,
        });
    }
}

/// What counts of a connection when one is to yield.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    process: Option<u32>,
    has_asked: bool,
    idle: Option<Duration>,
}

impl Candidate {
    fn of(place: &Place) -> Option<Candidate> {
        (!place.yielded).then(|| Candidate {
            process: place.process,
            has_asked: place.activity.has_asked.load(Relaxed),
            idle: place.activity.idle(),
        })
    }
}

/// Which connection yields to another, and how long it has been idle; `None` if each one is in use,
/// idle for less than `idle_min`, or of the process `owner`.
fn first_to_yield(
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
            !candidate.has_asked,
            connections_of(candidate.process),
            idle,
        );
        (!is_owner).then_some((rank, number))
    });
    // If the first in this order is not idle for long enough, no other one yields in its place:
    // clients that come in great numbers and ask for nothing do not take the place of a quiet VM.
    let ((_, _, idle), number) = order.max()?;
    (idle >= idle_min).then_some((number, idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Process, whether it has asked, and seconds that it has been idle.
    fn yields(connections: &[(u32, bool, Option<u64>)], owner: Option<u32>) -> Option<usize> {
        let candidate = |(process, has_asked, idle_s): &(u32, bool, Option<u64>)| {
            Some(Candidate {
                process: Some(*process),
                has_asked: *has_asked,
                idle: idle_s.map(Duration::from_secs),
            })
        };
        let candidates: Vec<_> = connections.iter().map(candidate).collect();
        first_to_yield(&candidates, owner, Duration::from_secs(30)).map(|(number, _)| number)
    }

    #[test]
    fn who_has_sent_no_request_yields_first_and_a_quiet_vm_last() {
        let vm = (1, true, Some(100_000));
        assert_eq!(
            yields(&[vm, (2, false, Some(40)), (2, false, Some(50))], None),
            Some(2)
        );
        // A process that leaves connections behind yields before the one that has a single one.
        assert_eq!(
            yields(&[vm, (2, true, Some(40)), (2, true, Some(50))], None),
            Some(2)
        );
        assert_eq!(
            yields(&[vm, (2, true, Some(40)), (3, true, Some(50))], None),
            Some(0)
        );
        assert_eq!(
            yields(&[vm, (2, true, None), (3, true, Some(29))], None),
            Some(0)
        );
    }

    #[test]
    fn who_is_busy_or_the_owner_does_not_yield() {
        assert_eq!(yields(&[(1, true, None), (2, false, Some(29))], None), None);
        assert_eq!(
            yields(&[(1, true, Some(100_000)), (2, false, Some(5))], None),
            None
        );
        let vm = (1, false, Some(100_000));
        assert_eq!(yields(&[vm, (2, true, Some(31))], Some(1)), Some(1));
        assert_eq!(yields(&[vm, vm], Some(1)), None);
        assert_eq!(yields(&[], None), None);
    }
}
