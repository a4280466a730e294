//! [`Worker`]: the thread of a queue. It executes the requests of the ring, polls for more for a
//! while, and sleeps.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ReadWriteFlags};

use super::VhostError;
use super::log::EventLog;
use super::memory::GuestMemory;
use super::queue::{BlockQueue, Broken};
use super::ring::Ring;
use crate::StopEvent;
use crate::disk::ServedDisk;
use crate::io_queue::{IoQueue, IoQueueOptions};
use crate::polling::Polling;

/// The interval of polls of the ring when the front end provides no kick.
const KICKLESS_POLL_INTERVAL: Duration = Duration::from_micros(100);
/// The interval of checks for the end while joining a thread.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Polls of the ring between two reads of the clock.
const POLLS_PER_CLOCK_READ: u32 = 16;

/// The parameters of a queue.
pub struct WorkerSetup {
    /// The disk.
    pub disk: Arc<ServedDisk>,
    /// Its number.
    pub index: u16,
    /// Its rings.
    pub ring: Ring,
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// The driver's kick; `None` if it has none.
    pub kick: Option<OwnedFd>,
    /// The notification of the driver, and that of the front end about a broken queue.
    pub signals: Signals,
    /// The driver cannot flush, so a finished write must be durable.
    pub write_through: bool,
    /// How long to poll before sleeping, at most.
    pub poll: Duration,
    /// The log of broken queues.
    pub log: Arc<EventLog>,
}

/// Event file descriptors that are raised for others.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// Requests have ended.
    pub call: Option<Arc<OwnedFd>>,
    /// The queue broke.
    pub error: Option<Arc<OwnedFd>>,
}

/// A running queue.
#[derive(Debug)]
pub struct Worker {
    control: Arc<Control>,
    /// The next index of the available ring, at the end of the thread.
    ended: Receiver<u16>,
    thread: JoinHandle<()>,
}

/// When joining a thread times out.
#[derive(Clone, Debug)]
pub struct JoinTimeout {
    /// The stop of the whole server.
    pub stop: StopEvent,
    /// The time after the stop.
    pub drain_timeout: Duration,
}

/// The session's requests to the thread.
#[derive(Debug)]
struct Control {
    /// Incremented with each change of `requested`.
    changes: AtomicU64,
    requested: Mutex<PendingChanges>,
    /// Wakes the thread.
    wake: OwnedFd,
}

#[derive(Debug)]
struct PendingChanges {
    memory: Arc<GuestMemory>,
    /// When a region was removed.
    removed: Option<Instant>,
    signals: Signals,
    stop: bool,
}

impl Worker {
    /// Starts the thread. Requests in the ring are executed at once.
    ///
    /// # Errors
    /// The system has no memory for a thread, an I/O queue, or a file descriptor.
    pub fn start(setup: WorkerSetup) -> Result<Worker, VhostError> {
        let index = setup.index;
        let system = |error| VhostError::Queue { index, error };
        let requested = PendingChanges {
            memory: Arc::clone(&setup.memory),
            removed: None,
            signals: setup.signals.clone(),
            stop: false,
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let control = Arc::new(Control {
            changes: AtomicU64::new(0),
            requested: Mutex::new(requested),
            wake: wake.map_err(|e| system(e.into()))?,
        });
        let shared = Arc::clone(&control);
        let (started, ready) = sync_channel(1);
        let (end, ended) = sync_channel(1);
        let thread = thread::Builder::new().name(format!("tapdisk-q{index}"));
        let thread = thread.spawn(move || {
            if let Some(next) = run(setup, shared, &started) {
                // The session may not be waiting any more.
                let _session = end.send(next);
            }
        });
        let thread = thread.map_err(system)?;
        match ready.recv() {
            Ok(Ok(())) => Ok(Worker {
                control,
                ended,
                thread,
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(system(std::io::Error::other("its thread ended"))),
        }
    }

    /// Uses this memory from now on. Requests in flight keep theirs. `removed`: a region was
    /// removed.
    pub fn remap(&self, memory: &Arc<GuestMemory>, removed: bool) {
        self.change(|requested| {
            requested.memory = Arc::clone(memory);
            if removed {
                requested.removed = Some(Instant::now());
            }
        });
    }

    /// Raises these from now on.
    pub fn signal(&self, signals: &Signals) {
        self.change(|requested| requested.signals = signals.clone());
    }

    /// Asks the thread to end after the requests in flight. [`Worker::join`] waits for that.
    pub fn stop(&self) {
        self.change(|requested| requested.stop = true);
    }

    /// Waits for the end of the thread; returns the next index of the available ring.
    ///
    /// # Errors
    /// The thread panicked, or does not end in time after the stop: the image does not answer, or
    /// the front end keeps its call descriptor blocked.
    pub fn join(self, end: &JoinTimeout) -> Result<u16, VhostError> {
        self.stop();
        let mut since = None;
        loop {
            match self.ended.recv_timeout(STOP_CHECK_INTERVAL) {
                Ok(next) => {
                    return self
                        .thread
                        .join()
                        .map(|()| next)
                        .map_err(|_| VhostError::Died);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(VhostError::Died),
                Err(RecvTimeoutError::Timeout) if end.stop.is_raised() => {
                    let since = *since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= end.drain_timeout {
                        return Err(VhostError::Stuck);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut PendingChanges)) {
        let mut requested = self.control.requested();
        change(&mut requested);
        self.control.changes.fetch_add(1, Ordering::Release);
        drop(requested);
        signal_event(&self.control.wake);
    }
}

impl Control {
    fn requested(&self) -> std::sync::MutexGuard<'_, PendingChanges> {
        // A change is one assignment, so a panic leaves no partial update.
        self.requested
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds to an event counter. A full counter is readable, which is sufficient.
fn signal_event(event: &impl AsFd) {
    let _full = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Empties an event counter; never blocks, though another reader may have emptied it first.
fn clear_event(event: &impl AsFd) {
    let mut count = [0; 8];
    let mut buffers = [rustix::io::IoSliceMut::new(&mut count)];
    let nowait = ReadWriteFlags::NOWAIT;
    if let Err(Errno::OPNOTSUPP | Errno::INVAL) =
        rustix::io::preadv2(event, &mut buffers, u64::MAX, nowait)
    {
        let _nothing_left = rustix::io::read(event, &mut count);
    }
}

/// Runs the queue; returns the next index of the available ring, or nothing if it could not start.
fn run(
    setup: WorkerSetup,
    control: Arc<Control>,
    started: &SyncSender<Result<(), VhostError>>,
) -> Option<u16> {
    let options = IoQueueOptions {
        queue: setup.index,
        depth: u32::from(setup.ring.table().size),
    };
    let io_queue = match IoQueue::new(&setup.disk, options) {
        Ok(io_queue) => io_queue,
        Err(error) => {
            // The session waits for this message.
            let _session = started.send(Err(VhostError::Disk(error)));
            return None;
        }
    };
    let queue = BlockQueue::new(
        &setup.disk,
        io_queue,
        setup.ring,
        &setup.memory,
        setup.write_through,
    );
    let _session = started.send(Ok(()));
    let mut thread = Thread {
        queue,
        control,
        changes_seen: 0,
        stopping: false,
        dead: false,
        kick: setup.kick,
        signals: setup.signals,
        polling: [Polling::new(setup.poll), Polling::new(setup.poll)],
        index: setup.index,
        log: setup.log,
    };
    // An earlier process may have been killed between returning a request in the ring and notifying
    // the driver, which would wait for ever. An unnecessary notification is harmless.
    thread.call();
    thread.run();
    Some(thread.queue.next_available())
}

struct Thread {
    queue: BlockQueue,
    control: Arc<Control>,
    /// The number of changes that were applied.
    changes_seen: u64,
    stopping: bool,
    /// The engine failed.
    dead: bool,
    kick: Option<OwnedFd>,
    signals: Signals,
    /// For when no request is in flight, and for when one is: the driver and the disk have
    /// different latencies.
    polling: [Polling; 2],
    index: u16,
    log: Arc<EventLog>,
}

impl Thread {
    fn run(&mut self) {
        loop {
            while self.step() {}
            if self.stopping && (self.dead || self.queue.io_queue().in_flight() == 0) {
                return;
            }
            if !self.poll_ring() {
                self.wait_for_work();
            }
        }
    }

    /// Does pending work; false if there was none.
    fn step(&mut self) -> bool {
        let result = self.try_step();
        result.unwrap_or_else(|broken| {
            self.on_broken(&broken);
            true
        })
    }

    fn try_step(&mut self) -> Result<bool, Broken> {
        if self.dead {
            return Ok(self.apply_changes());
        }
        let waiting = match self.stopping {
            true => 0,
            false => self.queue.waiting()?,
        };
        // In this order: a request in the ring may be in memory that was added before it was put
        // there, and is mapped here.
        if self.apply_changes() {
            return Ok(true);
        }
        if waiting == 0 && self.queue.is_idle() {
            return Ok(false);
        }
        let round = self.queue.round(waiting)?;
        if round.call {
            self.call();
        }
        Ok(round.progress)
    }

    fn call(&self) {
        if let Some(call) = &self.signals.call {
            signal_event(&**call);
        }
    }

    /// Applies the session's requests; false if there are no new ones.
    fn apply_changes(&mut self) -> bool {
        if self.control.changes.load(Ordering::Acquire) == self.changes_seen {
            return false;
        }
        clear_event(&self.control.wake);
        let requested = self.control.requested();
        self.changes_seen = self.control.changes.load(Ordering::Relaxed);
        self.queue.remap(&requested.memory, requested.removed);
        let before = std::mem::replace(&mut self.signals, requested.signals.clone());
        self.stopping = requested.stop;
        drop(requested);
        if self.stopping {
            self.queue.end_delays();
        }
        // An earlier notification may not have reached the new descriptor.
        let called = |signals: &Signals| signals.call.as_ref().map(Arc::as_ptr);
        if called(&before) != called(&self.signals) {
            self.call();
        }
        true
    }

    fn on_broken(&mut self, broken: &Broken) {
        self.dead |= matches!(broken, Broken::Disk(_));
        let index = self.index;
        self.log
            .report(|| format!("queue {index} is broken: {broken}"));
        // Requests that ended in the round that broke the queue are notified as well.
        self.call();
        if let Some(error) = &self.signals.error {
            signal_event(&**error);
        }
    }

    /// Polls for work for a while, if that pays; true if there was some.
    fn poll_ring(&mut self) -> bool {
        if self.stopping {
            return false;
        }
        let in_flight = usize::from(self.queue.io_queue().in_flight() > 0);
        let Some(longest) = self.polling[in_flight].begin() else {
            return false;
        };
        let started = Instant::now();
        let found = loop {
            if (0..POLLS_PER_CLOCK_READ).any(|_| self.step()) {
                break true;
            }
            if started.elapsed() >= longest {
                break false;
            }
            std::hint::spin_loop();
        };
        self.polling[in_flight].end(found, started.elapsed());
        found
    }

    /// Sleeps until there may be work.
    fn wait_for_work(&mut self) {
        let armed = match (self.dead, self.stopping) {
            (true, _) => Ok(false),
            (_, true) => Ok(self.queue.arm_ends()),
            _ => self.queue.arm(),
        };
        match armed {
            Ok(true) => {}
            Ok(false) => self.sleep(),
            Err(broken) => self.on_broken(&broken),
        }
        if let Err(broken) = self.queue.disarm() {
            self.on_broken(&broken);
        }
    }

    fn sleep(&self) {
        let io_queue = self.queue.io_queue();
        let kick = self.kick.as_ref().filter(|_| !self.stopping && !self.dead);
        let mut events = Vec::with_capacity(3);
        events.push(PollFd::new(&self.control.wake, PollFlags::IN));
        if let Some(completions) = io_queue.completions().filter(|_| !self.dead) {
            events.push(PollFd::from_borrowed_fd(completions, PollFlags::IN));
        }
        if let Some(kick) = kick {
            events.push(PollFd::new(kick, PollFlags::IN));
        }
        let due = self.queue.due().filter(|_| !self.dead);
        let mut longest = due.map(|due| due.saturating_duration_since(Instant::now()));
        if self.kick.is_none() && !self.dead {
            longest = Some(longest.map_or(KICKLESS_POLL_INTERVAL, |due| {
                due.min(KICKLESS_POLL_INTERVAL)
            }));
        }
        let timeout = longest.map(|longest| Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: i64::from(longest.subsec_nanos()),
        });
        // A signal ends it early, which costs one poll of the ring.
        let _woken = poll(&mut events, timeout.as_ref());
        let kicked = kick.is_some() && events.last().is_some_and(|e| !e.revents().is_empty());
        if let (true, Some(kick)) = (kicked, kick) {
            clear_event(kick);
        }
    }
}
