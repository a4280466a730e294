//! [`Lane`]: executes the requests of a queue on the image. It belongs to one thread.
//!
//! The stages of a request:
//!
//! 1. [`take`](Lane::take): the front end took it from its queue. This is its `Q`. An invalid
//!    request ends here, with an error.
//! 2. [`submit`](Lane::submit): all received requests are issued. Service time starts here.
//! 3. The engine executes it; [`completions`](Lane::completions) is readable when it may have
//!    ended.
//! 4. [`reap`](Lane::reap): it has ended. This is its `R`, `E` or `N`, and the front end answers
//!    the guest.
//!
//! A round of these is between [`begin`](Lane::begin) and [`end`](Lane::end), which publishes its
//! records to consumers all at once.
#![allow(unsafe_code)] // It takes a guest's memory by its address, and says what for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::iovec;
use weir_model::{Op, SECTOR_BYTES};
use weir_tap::monotonic_ns;

use crate::disk::{Disk, DiskError, LaneCounters, engine_failed};
use crate::engine::{EngineKind, SyncEngine, UringEngine, Work};
use crate::recorder::{Ended, Recorder, Taken};
use crate::{Outcome, Request};

/// The options of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneOptions {
    /// The number of the queue or the connection, as in rows.
    pub queue: u16,
    /// Maximum number of requests in flight, the size of the queue. Further requests fail with
    /// `EAGAIN`: a guest that follows its device's rules never has more.
    pub depth: u32,
}

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The token of [`Lane::take`].
    pub token: u64,
    /// Its outcome.
    pub outcome: Outcome,
}

/// A queue's way to the disk.
///
/// ```no_run
/// use std::time::Duration;
/// use weir_tapdisk::{Disk, DiskOptions, Lane, LaneOptions, Request};
///
/// let disk = Disk::open(DiskOptions::new("disk.raw"))?;
/// let mut lane = Lane::new(&disk, LaneOptions { queue: 0, depth: 128 })?;
/// let mut done = Vec::new();
/// lane.begin();
/// // SAFETY: a flush has no memory.
/// unsafe { lane.take(Request::FLUSH, &[], 1) };
/// lane.submit()?;
/// lane.drain(&mut done)?;
/// lane.end();
/// # Ok::<(), weir_tapdisk::DiskError>(())
/// ```
pub struct Lane {
    disk: Arc<Disk>,
    depth: usize,
    /// Requests in flight, and their calls, by slot; and the free slots.
    slots: Vec<Slot>,
    works: Vec<Work>,
    free: Vec<u32>,
    /// Taken and not submitted.
    taken: Vec<u32>,
    /// Delayed by an injection, and until when.
    delayed: BinaryHeap<Reverse<(Instant, u32)>>,
    engine: Engine,
    /// Ended in the engine in this round.
    ended: Vec<(u32, Outcome)>,
    /// Ended and not reaped.
    done: Vec<Done>,
    counters: Arc<LaneCounters>,
    recorder: Option<Recorder>,
    ids: Range<u64>,
    /// When the requests of this round were taken: they became visible in the queue at the same
    /// time.
    taken_ns: Option<u64>,
}

enum Engine {
    Sync(SyncEngine),
    Uring(Box<UringEngine>),
}

/// A request in progress.
#[derive(Clone, Copy)]
struct Slot {
    token: u64,
    taken: Taken,
    issued_ns: Option<u64>,
    /// The injected errno, after the delay.
    errno: Option<i32>,
}

/// Number of request ids that a lane allocates at a time.
const IDS: u64 = 1024;

impl Lane {
    /// Opens a lane. Any thread may create it; it then belongs to the one that uses it.
    ///
    /// # Errors
    /// The system has no memory for its engine.
    pub fn new(disk: &Arc<Disk>, options: LaneOptions) -> Result<Lane, DiskError> {
        let files = disk.files_for_a_lane()?;
        let engine = match disk.choice().engine {
            EngineKind::Sync => Engine::Sync(SyncEngine::new(files)),
            // The permissions or limits for a ring may have changed since the disk was opened. A
            // guest that waits for its disk is worse than one without io_uring.
            EngineKind::Uring => match UringEngine::new(files, options.depth) {
                Ok(engine) => Engine::Uring(Box::new(engine)),
                Err(_) => Engine::Sync(SyncEngine::new(disk.files_for_a_lane()?)),
            },
        };
        let depth = options.depth as usize;
        Ok(Lane {
            recorder: disk.recorder(options.queue)?,
            counters: disk.ledger().open(),
            disk: Arc::clone(disk),
            depth,
            slots: Vec::with_capacity(depth),
            works: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
            taken: Vec::with_capacity(depth),
            delayed: BinaryHeap::new(),
            engine,
            ended: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth),
            ids: 0..0,
            taken_ns: None,
        })
    }

    /// Starts a round. Its records until [`end`](Lane::end) are published together.
    pub fn begin(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.begin();
        }
        self.taken_ns = None;
    }

    /// Ends a round.
    pub fn end(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.end();
        }
    }

    /// Takes a request, with its memory in the guest's order. An invalid request ends like any
    /// other, with its error; [`reap`](Lane::reap) returns the `token`.
    ///
    /// # Safety
    /// The memory of `buffers` is valid, and for a read writable, until the token is reaped or the
    /// lane is dropped. The list itself is copied.
    pub unsafe fn take(&mut self, request: Request, buffers: &[iovec], token: u64) {
        let end = match self.check(&request, buffers) {
            Err(errno) => Some(Outcome::Failed(errno)),
            Ok(()) if self.in_flight() >= self.depth => Some(Outcome::Failed(libc::EAGAIN)),
            Ok(()) if request.op != Op::Flush && request.bytes == 0 => Some(Outcome::Done),
            Ok(()) => None,
        };
        let has_place = request.op != Op::Flush && end.is_none();
        let slot = self.enter(request, token, has_place);
        match end {
            Some(outcome) => self.finish_at_once(slot, outcome),
            None => {
                self.works[slot as usize].begin(&request, buffers, &self.disk);
                self.taken.push(slot);
            }
        }
    }

    /// Takes a request that the front end cannot execute, and ends it: its descriptors are invalid,
    /// its operation is unknown.
    pub fn reject(&mut self, request: Request, outcome: Outcome, token: u64) {
        let slot = self.enter(request, token, false);
        self.finish_at_once(slot, outcome);
    }

    /// Issues all taken requests. The sync engine executes them here, io_uring receives them in one
    /// system call.
    ///
    /// # Errors
    /// The engine has failed. The requests stay in flight; the lane must be closed.
    pub fn submit(&mut self) -> Result<(), DiskError> {
        if !self.taken.is_empty() {
            self.taken_ns = None;
            let mut now_ns = monotonic_ns();
            for place in 0..self.taken.len() {
                now_ns = self.issue(self.taken[place], now_ns);
            }
            self.taken.clear();
        }
        self.hand_over()
    }

    /// Appends the requests that ended since the last call. It does not wait.
    pub fn reap(&mut self, done: &mut Vec<Done>) {
        if !self.delayed.is_empty() {
            self.start_delayed(Instant::now());
        }
        self.collect();
        done.append(&mut self.done);
    }

    /// Ends all taken requests and appends them: waits for the kernel, and ends injected delays.
    ///
    /// # Errors
    /// The engine has failed. Requests in flight may not have ended.
    pub fn drain(&mut self, done: &mut Vec<Done>) -> Result<(), DiskError> {
        self.submit()?;
        self.end_delays();
        loop {
            self.collect();
            self.hand_over()?;
            done.append(&mut self.done);
            if self.in_flight() == 0 {
                return Ok(());
            }
            if let Engine::Uring(engine) = &mut self.engine {
                engine.wait().map_err(engine_failed(RING, RING_REMEDY))?;
            }
        }
    }

    /// Ends all injected delays, for callers that wait for the end of all requests.
    pub fn end_delays(&mut self) {
        let latest = self.delayed.iter().map(|Reverse((until, _))| *until).max();
        if let Some(latest) = latest {
            self.start_delayed(latest);
        }
    }

    /// Readable when [`reap`](Lane::reap) may find ended requests; reap makes it unreadable. `None`
    /// for the sync engine, whose requests have ended when [`submit`](Lane::submit) returns.
    pub fn completions(&self) -> Option<BorrowedFd<'_>> {
        match &self.engine {
            Engine::Sync(_) => None,
            Engine::Uring(engine) => Some(engine.event()),
        }
    }

    /// For front ends that poll: to be called before waiting for
    /// [`completions`](Lane::completions). False: do not wait, there are requests to reap. After
    /// the first call, the descriptor is signalled only between a call and the next reap, which
    /// saves a system call whenever the front end does not wait.
    pub fn arm(&mut self) -> bool {
        let nothing = self.done.is_empty();
        match &mut self.engine {
            Engine::Sync(_) => nothing,
            Engine::Uring(engine) => engine.arm() && nothing,
        }
    }

    /// When [`reap`](Lane::reap) and [`submit`](Lane::submit) must be called again even if nothing
    /// becomes readable: a request is delayed until then, or the kernel had no memory.
    pub fn due(&self) -> Option<Instant> {
        if let Engine::Uring(engine) = &self.engine
            && engine.has_unsubmitted()
        {
            return Some(Instant::now() + RETRY);
        }
        self.delayed.peek().map(|Reverse((until, _))| *until)
    }

    /// Requests that were taken and have not been reaped.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.done.len()
    }
}

/// The interval between attempts to submit when the kernel has no memory.
const RETRY: Duration = Duration::from_millis(1);

const RING: &str = "io_uring";
const RING_REMEDY: &str = "choose engine `sync`";

/// Taking and issuing.
impl Lane {
    /// Whether a request is valid for the disk; else its errno.
    fn check(&self, request: &Request, buffers: &[iovec]) -> Result<(), i32> {
        let Request { op, bytes, .. } = *request;
        if op == Op::Flush {
            return Ok(());
        }
        if op != Op::Read && self.disk.is_read_only() {
            return Err(libc::EROFS);
        }
        let offset = request.offset_bytes().ok_or(libc::EINVAL)?;
        let end = offset.checked_add(bytes).ok_or(libc::EINVAL)?;
        if end > self.disk.size_bytes() {
            return Err(libc::EINVAL);
        }
        let step = u64::from(self.disk.step_bytes());
        if !offset.is_multiple_of(step) || !bytes.is_multiple_of(step) {
            return Err(libc::EINVAL);
        }
        let lengths = buffers.iter().map(|piece| piece.iov_len as u64);
        let memory = lengths.fold(0, u64::saturating_add);
        match matches!(op, Op::Read | Op::Write) && memory != bytes {
            true => Err(libc::EINVAL),
            false => Ok(()),
        }
    }

    /// Stores a request, and records that it was taken.
    fn enter(&mut self, request: Request, token: u64, has_place: bool) -> u32 {
        let head = &self.disk.ledger().head;
        let in_flight = head.enter();
        let sectors = request.whole_bytes() / SECTOR_BYTES as u64;
        let seek_sectors = match has_place {
            true => head.move_to(request.sector, sectors),
            false => None,
        };
        let taken = Taken {
            request,
            id: self.id(),
            taken_ns: *self.taken_ns.get_or_insert_with(monotonic_ns),
            in_flight,
            seek_sectors,
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.taken(&taken);
        }
        let slot = Slot {
            token,
            taken,
            issued_ns: None,
            errno: None,
        };
        match self.free.pop() {
            Some(place) => {
                self.slots[place as usize] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                self.works.push(Work::new());
                (self.slots.len() - 1) as u32
            }
        }
    }

    fn id(&mut self) -> u64 {
        if self.ids.is_empty() {
            self.ids = self.disk.more_ids(IDS);
        }
        self.ids.next().expect("it was filled just now")
    }

    /// Issues a request at `now_ns`, and returns the time after that.
    fn issue(&mut self, slot: u32, now_ns: u64) -> u64 {
        let noted = &mut self.slots[slot as usize];
        noted.issued_ns = Some(now_ns);
        if let Some(injection_for) = self.disk.injector().injection_for(&noted.taken.request) {
            noted.errno = injection_for.errno;
            if !injection_for.delay.is_zero() {
                let until = Instant::now() + injection_for.delay;
                self.delayed.push(Reverse((until, slot)));
                return now_ns;
            }
        }
        self.start(slot, now_ns)
    }

    /// Starts a request in the engine, which may finish it too.
    fn start(&mut self, slot: u32, now_ns: u64) -> u64 {
        if let Some(errno) = self.slots[slot as usize].errno {
            let outcome = match errno {
                libc::EOPNOTSUPP => Outcome::Unsupported,
                errno => Outcome::Failed(errno),
            };
            self.finish(slot, outcome, now_ns);
            return now_ns;
        }
        let work = &mut self.works[slot as usize];
        match &mut self.engine {
            Engine::Sync(engine) => {
                let outcome = engine.run(work, &self.disk);
                let now_ns = monotonic_ns();
                self.finish(slot, outcome, now_ns);
                now_ns
            }
            Engine::Uring(engine) => {
                engine.start(slot, work, &self.disk);
                now_ns
            }
        }
    }

    fn hand_over(&mut self) -> Result<(), DiskError> {
        match &mut self.engine {
            Engine::Sync(_) => Ok(()),
            Engine::Uring(engine) => engine.submit().map_err(engine_failed(RING, RING_REMEDY)),
        }
    }

    /// Starts requests whose delay ended by `now`.
    fn start_delayed(&mut self, now: Instant) {
        let mut now_ns = None;
        while let Some(Reverse((until, slot))) = self.delayed.peek().copied()
            && until <= now
        {
            self.delayed.pop();
            self.taken_ns = None;
            let time = *now_ns.get_or_insert_with(monotonic_ns);
            now_ns = Some(self.start(slot, time));
        }
    }
}

/// Completion.
impl Lane {
    /// Collects the requests that the engine has finished.
    fn collect(&mut self) {
        let Engine::Uring(engine) = &mut self.engine else {
            return;
        };
        engine.reap(&self.disk, &mut self.works, &mut self.ended);
        if self.ended.is_empty() {
            return;
        }
        self.taken_ns = None;
        let now_ns = monotonic_ns();
        let mut ended = std::mem::take(&mut self.ended);
        for (slot, outcome) in ended.drain(..) {
            self.finish(slot, outcome, now_ns);
        }
        self.ended = ended;
    }

    fn finish_at_once(&mut self, slot: u32, outcome: Outcome) {
        let now_ns = self.slots[slot as usize].taken.taken_ns;
        self.finish(slot, outcome, now_ns);
    }

    /// Ends a request: records it, and queues it to be reaped.
    fn finish(&mut self, slot: u32, outcome: Outcome, now_ns: u64) {
        let Slot {
            token,
            taken,
            issued_ns,
            ..
        } = self.slots[slot as usize];
        let Request { op, bytes, .. } = taken.request;
        let latency_ns = now_ns.saturating_sub(taken.taken_ns);
        self.counters.count(op, bytes, outcome, latency_ns);
        if let Some(recorder) = &mut self.recorder {
            recorder.ended(&Ended {
                taken,
                submitted_ns: issued_ns,
                ended_ns: now_ns,
                outcome,
            });
        }
        self.disk.ledger().head.leave(1);
        self.free.push(slot);
        self.done.push(Done { token, outcome });
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // The kernel may still write to memory of the guest or of the lane. Delayed requests have
        // not started, and never will.
        if let Engine::Uring(engine) = &mut self.engine {
            engine.drain_ring(&self.disk, &mut self.works);
        }
        let under_way = self.slots.len() - self.free.len();
        self.disk.ledger().head.leave(under_way);
        self.disk.ledger().close(&self.counters);
    }
}
