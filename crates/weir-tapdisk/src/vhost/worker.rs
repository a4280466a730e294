//! [`Worker`]: the thread of a queue. It carries out what is in the ring, looks for more for a while, and
//! sleeps.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ReadWriteFlags};

use super::VhostError;
use super::memory::GuestMemory;
use super::poll::Polling;
use super::queue::{BlockQueue, Broken};
use super::remarks::Remarks;
use super::ring::Ring;
use crate::Stop;
use crate::disk::Disk;
use crate::lane::{Lane, LaneOptions};

/// How often the ring is looked at when the front end gives no kick.
const KICKLESS: Duration = Duration::from_micros(100);
/// How often who waits for a thread looks whether all is to end.
const LOOK_AT_END: Duration = Duration::from_millis(50);
/// Looks at the ring between two looks at the clock.
const LOOKS: u32 = 16;

/// What a queue begins with.
pub struct Setup {
    /// The disk.
    pub disk: Arc<Disk>,
    /// Its number.
    pub index: u16,
    /// Its rings.
    pub ring: Ring,
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// What the driver kicks; `None` if it does not.
    pub kick: Option<OwnedFd>,
    /// How the driver is told that something has ended, and how the front end that the queue broke.
    pub signals: Signals,
    /// The driver cannot flush, so a write that is done must be durable.
    pub write_through: bool,
    /// How long to look for work before sleeping, at most.
    pub poll: Duration,
    /// Who hears of a broken queue.
    pub remarks: Arc<Remarks>,
}

/// What is raised for others: event file descriptors.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// Something has ended.
    pub call: Option<Arc<OwnedFd>>,
    /// The queue broke.
    pub error: Option<Arc<OwnedFd>>,
}

/// A queue that runs.
#[derive(Debug)]
pub struct Worker {
    control: Arc<Control>,
    /// What is next in the available ring, when the thread is done.
    ended: Receiver<u16>,
    thread: JoinHandle<()>,
}

/// When a thread is not waited for any longer.
#[derive(Clone, Debug)]
pub struct End {
    /// All is to end.
    pub stop: Stop,
    /// How long after that.
    pub patience: Duration,
}

/// What the session wants of the thread.
#[derive(Debug)]
struct Control {
    /// Counts the changes of `wanted`.
    changes: AtomicU64,
    wanted: Mutex<Wanted>,
    /// Wakes the thread.
    wake: OwnedFd,
}

#[derive(Debug)]
struct Wanted {
    memory: Arc<GuestMemory>,
    /// When some of it was taken away.
    removed: Option<Instant>,
    signals: Signals,
    stop: bool,
}

impl Worker {
    /// Starts the thread. What is in the ring already is carried out at once.
    ///
    /// # Errors
    /// The system has no room for a thread, a lane, or a file descriptor.
    pub fn start(setup: Setup) -> Result<Worker, VhostError> {
        let index = setup.index;
        let system = |error| VhostError::Queue { index, error };
        let wanted = Wanted {
            memory: Arc::clone(&setup.memory),
            removed: None,
            signals: setup.signals.clone(),
            stop: false,
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let control = Arc::new(Control {
            changes: AtomicU64::new(0),
            wanted: Mutex::new(wanted),
            wake: wake.map_err(|e| system(e.into()))?,
        });
        let shared = Arc::clone(&control);
        let (started, ready) = sync_channel(1);
        let (end, ended) = sync_channel(1);
        let thread = thread::Builder::new().name(format!("tapdisk-q{index}"));
        let thread = thread.spawn(move || {
            if let Some(next) = run(setup, shared, &started) {
                // Nobody may wait any more.
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

    /// What the queue does from now on is done in this memory. What is on its way stays where it is.
    /// `removed` says that some was taken away.
    pub fn remap(&self, memory: &Arc<GuestMemory>, removed: bool) {
        self.change(|wanted| {
            wanted.memory = Arc::clone(memory);
            if removed {
                wanted.removed = Some(Instant::now());
            }
        });
    }

    /// Raises these from now on.
    pub fn signal(&self, signals: &Signals) {
        self.change(|wanted| wanted.signals = signals.clone());
    }

    /// Asks the thread to end when what is on its way has ended. [`Worker::join`] waits for that.
    pub fn stop(&self) {
        self.change(|wanted| wanted.stop = true);
    }

    /// Waits for the end of the thread; what is next in the available ring.
    ///
    /// # Errors
    /// The thread panicked, or does not end though `end` says that all is to end: the image does not
    /// answer, or the front end sees to it that it cannot be called.
    pub fn join(self, end: &End) -> Result<u16, VhostError> {
        self.stop();
        let mut since = None;
        loop {
            match self.ended.recv_timeout(LOOK_AT_END) {
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
                    if since.elapsed() >= end.patience {
                        return Err(VhostError::Stuck);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Wanted)) {
        let mut wanted = self.control.wanted();
        change(&mut wanted);
        self.control.changes.fetch_add(1, Ordering::Release);
        drop(wanted);
        raise(&self.control.wake);
    }
}

impl Control {
    fn wanted(&self) -> std::sync::MutexGuard<'_, Wanted> {
        // A change is one assignment, so whoever panicked left nothing half done.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds to an event counter. A counter that is full is readable, which is all that matters.
fn raise(event: &impl AsFd) {
    let _full = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Empties an event counter; never waits, though another may have emptied it first.
fn lower(event: &impl AsFd) {
    let mut count = [0; 8];
    let mut buffers = [rustix::io::IoSliceMut::new(&mut count)];
    let nowait = ReadWriteFlags::NOWAIT;
    if let Err(Errno::OPNOTSUPP | Errno::INVAL) =
        rustix::io::preadv2(event, &mut buffers, u64::MAX, nowait)
    {
        let _nothing_left = rustix::io::read(event, &mut count);
    }
}

/// What is next in the available ring in the end; nothing if it could not begin.
fn run(
    setup: Setup,
    control: Arc<Control>,
    started: &SyncSender<Result<(), VhostError>>,
) -> Option<u16> {
    let options = LaneOptions {
        queue: setup.index,
        depth: u32::from(setup.ring.table().size),
    };
    let lane = match Lane::new(&setup.disk, options) {
        Ok(lane) => lane,
        Err(error) => {
            // The session waits for this word.
            let _session = started.send(Err(VhostError::Disk(error)));
            return None;
        }
    };
    let queue = BlockQueue::new(
        &setup.disk,
        lane,
        setup.ring,
        &setup.memory,
        setup.write_through,
    );
    let _session = started.send(Ok(()));
    let mut thread = Thread {
        queue,
        control,
        seen: 0,
        stopping: false,
        dead: false,
        kick: setup.kick,
        signals: setup.signals,
        polling: [Polling::new(setup.poll), Polling::new(setup.poll)],
        index: setup.index,
        remarks: setup.remarks,
    };
    // A process before us may have been killed between telling an end in the ring and calling the
    // driver, who then waits for a call that nobody makes. One too many does no harm.
    thread.call();
    thread.run();
    Some(thread.queue.next_available())
}

struct Thread {
    queue: BlockQueue,
    control: Arc<Control>,
    /// Changes that were adopted.
    seen: u64,
    stopping: bool,
    /// The engine gave up.
    dead: bool,
    kick: Option<OwnedFd>,
    signals: Signals,
    /// For when nothing is on its way, and for when something is: the driver and the disk each have
    /// their own pace.
    polling: [Polling; 2],
    index: u16,
    remarks: Arc<Remarks>,
}

impl Thread {
    fn run(&mut self) {
        loop {
            while self.step() {}
            if self.stopping && (self.dead || self.queue.lane().in_flight() == 0) {
                return;
            }
            if !self.look() {
                self.rest();
            }
        }
    }

    /// Does what there is to do; false if there was nothing.
    fn step(&mut self) -> bool {
        let result = self.try_step();
        result.unwrap_or_else(|broken| {
            self.broke(&broken);
            true
        })
    }

    fn try_step(&mut self) -> Result<bool, Broken> {
        if self.dead {
            return Ok(self.adopt());
        }
        let waiting = match self.stopping {
            true => 0,
            false => self.queue.waiting()?,
        };
        // In this order: a request that is in the ring may be in memory that was added before it was
        // put there, and is adopted here.
        if self.adopt() {
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
            raise(&**call);
        }
    }

    /// Takes over what the session wants; false if that is nothing new.
    fn adopt(&mut self) -> bool {
        if self.control.changes.load(Ordering::Acquire) == self.seen {
            return false;
        }
        lower(&self.control.wake);
        let wanted = self.control.wanted();
        self.seen = self.control.changes.load(Ordering::Relaxed);
        self.queue.remap(&wanted.memory, wanted.removed);
        let before = std::mem::replace(&mut self.signals, wanted.signals.clone());
        self.stopping = wanted.stop;
        drop(wanted);
        if self.stopping {
            self.queue.hurry();
        }
        // What was told by the one before may have reached nobody any more.
        let called = |signals: &Signals| signals.call.as_ref().map(Arc::as_ptr);
        if called(&before) != called(&self.signals) {
            self.call();
        }
        true
    }

    fn broke(&mut self, broken: &Broken) {
        self.dead |= matches!(broken, Broken::Disk(_));
        let index = self.index;
        self.remarks
            .say(|| format!("queue {index} is broken: {broken}"));
        // What ended in the round that broke is told as well.
        self.call();
        if let Some(error) = &self.signals.error {
            raise(&**error);
        }
    }

    /// Looks for work for a while, if that pays; true if there was some.
    fn look(&mut self) -> bool {
        if self.stopping {
            return false;
        }
        let pace = usize::from(self.queue.lane().in_flight() > 0);
        let Some(longest) = self.polling[pace].begin() else {
            return false;
        };
        let begun = Instant::now();
        let found = loop {
            if (0..LOOKS).any(|_| self.step()) {
                break true;
            }
            if begun.elapsed() >= longest {
                break false;
            }
            std::hint::spin_loop();
        };
        self.polling[pace].end(found, begun.elapsed());
        found
    }

    /// Sleeps until there may be something to do.
    fn rest(&mut self) {
        let armed = match (self.dead, self.stopping) {
            (true, _) => Ok(false),
            (_, true) => Ok(self.queue.arm_ends()),
            _ => self.queue.arm(),
        };
        match armed {
            Ok(true) => {}
            Ok(false) => self.sleep(),
            Err(broken) => self.broke(&broken),
        }
        if let Err(broken) = self.queue.disarm() {
            self.broke(&broken);
        }
    }

    fn sleep(&self) {
        let lane = self.queue.lane();
        let kick = self.kick.as_ref().filter(|_| !self.stopping && !self.dead);
        let mut events = Vec::with_capacity(3);
        events.push(PollFd::new(&self.control.wake, PollFlags::IN));
        if let Some(completions) = lane.completions().filter(|_| !self.dead) {
            events.push(PollFd::from_borrowed_fd(completions, PollFlags::IN));
        }
        if let Some(kick) = kick {
            events.push(PollFd::new(kick, PollFlags::IN));
        }
        let due = self.queue.due().filter(|_| !self.dead);
        let mut longest = due.map(|due| due.saturating_duration_since(Instant::now()));
        if self.kick.is_none() && !self.dead {
            longest = Some(longest.map_or(KICKLESS, |due| due.min(KICKLESS)));
        }
        let timeout = longest.map(|longest| Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: i64::from(longest.subsec_nanos()),
        });
        // A signal ends it early, which costs one look at the ring.
        let _woken = poll(&mut events, timeout.as_ref());
        let kicked = kick.is_some() && events.last().is_some_and(|e| !e.revents().is_empty());
        if let (true, Some(kick)) = (kicked, kick) {
            lower(kick);
        }
    }
}
