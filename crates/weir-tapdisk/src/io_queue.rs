//! [`IoQueue`]: executes the requests of a queue on the image. It belongs to one thread.
//!
//! The stages of a request:
//!
//! 1. [`enqueue`](IoQueue::enqueue): the front end received it. This is its `Q`. An
//!    invalid request ends here, with an error.
//! 2. [`submit`](IoQueue::submit): all received requests are issued, as far as the limits of the
//!    disk admit them ([`Throttle`](crate::Throttle)); the others are held, in their order. Service
//!    time starts here.
//! 3. The engine executes it; [`completions`](IoQueue::completions) is readable when it may have
//!    ended.
//! 4. [`reap`](IoQueue::reap): it has ended. This is its `R`, `E` or `N`, and the front end
//!    answers the guest.
//!
//! A round of these is between [`begin`](IoQueue::begin) and [`end`](IoQueue::end), which
//! publishes its records to consumers all at once.
#![allow(unsafe_code)] // It receives a guest's memory by its address.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::iovec;
use weir_model::{Op, SECTOR_BYTES};
use weir_tap::monotonic_ns;
use weir_tap::tapdisk::mark::RequestMark;

use crate::disk::{DiskError, QueueCounters, ServedDisk, engine_failed};
use crate::engine::{EngineKind, SyncEngine, UringEngine, Work};
use crate::recorder::{EndedRequest, ReceivedRequest, Recorder};
use crate::{Outcome, Request};

/// The options of an I/O queue.
#[derive(Clone, Copy, Debug)]
pub struct IoQueueOptions {
    /// The number of the queue or the connection, as in rows.
    pub queue: u16,
    /// Maximum number of requests in flight, the size of the queue. Further requests fail with
    /// `EAGAIN`: a guest that follows its device's rules never has more.
    pub depth: u32,
}

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The token of [`IoQueue::enqueue`].
    pub token: u64,
    /// Its outcome.
    pub outcome: Outcome,
}

/// A queue's way to the disk.
///
/// ```no_run
/// use std::time::Duration;
/// use weir_tapdisk::{ServedDisk, DiskOptions, IoQueue, IoQueueOptions, Request};
///
/// let disk = ServedDisk::open(DiskOptions::new("disk.raw"))?;
/// let mut queue = IoQueue::new(&disk, IoQueueOptions { queue: 0, depth: 128 })?;
/// let mut done = Vec::new();
/// queue.begin();
/// // SAFETY: a flush has no memory.
/// unsafe { queue.enqueue(Request::FLUSH, &[], 1) };
/// queue.submit()?;
/// queue.drain(&mut done)?;
/// queue.end();
/// # Ok::<(), weir_tapdisk::DiskError>(())
/// ```
pub struct IoQueue {
    disk: Arc<ServedDisk>,
    depth: usize,
    /// Requests in flight, and their calls, by slot; and the free slots.
    slots: Vec<Slot>,
    works: Vec<Work>,
    free: Vec<u32>,
    /// Taken and not submitted.
    received: Vec<u32>,
    /// Held by the limits of the disk, in their order, and when to try again.
    held: VecDeque<u32>,
    held_until: Option<Instant>,
    /// Delayed by an injection, and until when.
    delayed: BinaryHeap<Reverse<(Instant, u32)>>,
    engine: Engine,
    /// Ended in the engine in this round.
    ended: Vec<(u32, Outcome)>,
    /// Ended and not reaped.
    done: Vec<Completion>,
    counters: Arc<QueueCounters>,
    recorder: Option<Recorder>,
    ids: Range<u64>,
    /// When the requests of this round were received: they became visible in the queue at the same
    /// time.
    received_ns: Option<u64>,
}

/// Which of the held requests are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// Those that the limits admit.
    Limited,
    /// All.
    Unlimited,
}

enum Engine {
    Sync(SyncEngine),
    Uring(Box<UringEngine>),
}

/// A request in progress.
#[derive(Clone, Copy)]
struct Slot {
    token: u64,
    received: ReceivedRequest,
    issued_ns: Option<u64>,
    /// The injected errno, after the delay.
    errno: Option<i32>,
}

/// Number of request ids that an I/O queue allocates at a time.
const IDS: u64 = 1024;

impl IoQueue {
    /// Opens an I/O queue. Any thread may create it; it then belongs to the one that uses it.
    ///
    /// # Errors
    /// The system has no memory for its engine.
    pub fn new(disk: &Arc<ServedDisk>, options: IoQueueOptions) -> Result<IoQueue, DiskError> {
        let files = disk.files_for_queue()?;
        let engine = match disk.choice().engine {
            EngineKind::Sync => Engine::Sync(SyncEngine::new(files)),
            // The permissions or limits for a ring may have changed since the disk was opened. A
            // guest that waits for its disk is worse than one without io_uring.
            EngineKind::Uring => match UringEngine::new(files, options.depth) {
                Ok(engine) => Engine::Uring(Box::new(engine)),
                Err(_) => Engine::Sync(SyncEngine::new(disk.files_for_queue()?)),
            },
        };
        let depth = options.depth as usize;
        Ok(IoQueue {
            recorder: disk.recorder(options.queue)?,
            counters: disk.counters_by_queue().open(),
            disk: Arc::clone(disk),
            depth,
            slots: Vec::with_capacity(depth),
            works: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
            received: Vec::with_capacity(depth),
            held: VecDeque::new(),
            held_until: None,
            delayed: BinaryHeap::new(),
            engine,
            ended: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth),
            ids: 0..0,
            received_ns: None,
        })
    }

    /// Starts a round. Its records until [`end`](IoQueue::end) are published together.
    pub fn begin(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.begin();
        }
        self.received_ns = None;
    }

    /// Ends a round.
    pub fn end(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.end();
        }
    }

    /// Takes a request, with its memory in the guest's order. An invalid request ends like any
    /// other, with its error; [`reap`](IoQueue::reap) returns the `token`.
    ///
    /// # Safety
    /// The memory of `buffers` is valid, and for a read writable, until the token is reaped or the
    /// I/O queue is dropped. The list itself is copied.
    pub unsafe fn enqueue(&mut self, request: Request, buffers: &[iovec], token: u64) {
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
                self.received.push(slot);
            }
        }
    }

    /// Takes a request that the front end cannot execute, and ends it: its descriptors are invalid,
    /// its operation is unknown.
    pub fn reject(&mut self, request: Request, outcome: Outcome, token: u64) {
        let slot = self.enter(request, token, false);
        self.finish_at_once(slot, outcome);
    }

    /// Issues all enqueued requests that the limits admit. The sync engine executes them here,
    /// io_uring receives them in one system call.
    ///
    /// # Errors
    /// The engine has failed. The requests stay in flight; the I/O queue must be closed.
    pub fn submit(&mut self) -> Result<(), DiskError> {
        if !self.held.is_empty() || self.disk.throttle().is_limited() {
            self.disk.throttle().hold(self.received.len());
            self.held.extend(self.received.drain(..));
            self.issue_held(Admission::Limited);
        }
        if !self.received.is_empty() {
            self.received_ns = None;
            let mut now_ns = monotonic_ns();
            for place in 0..self.received.len() {
                now_ns = self.issue(self.received[place], now_ns);
            }
            self.received.clear();
        }
        self.hand_over()
    }

    /// Appends the requests that ended since the last call. It does not wait.
    pub fn reap(&mut self, done: &mut Vec<Completion>) {
        if !self.delayed.is_empty() {
            self.start_delayed(Instant::now());
        }
        self.collect();
        done.append(&mut self.done);
    }

    /// Ends all enqueued requests and appends them: waits for the kernel, and ends injected delays
    /// and those of the limits.
    ///
    /// # Errors
    /// The engine has failed. Requests in flight may not have ended.
    pub fn drain(&mut self, done: &mut Vec<Completion>) -> Result<(), DiskError> {
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

    /// Ends all injected delays and those of the limits, for callers that wait for the end of all
    /// requests.
    pub fn end_delays(&mut self) {
        self.issue_held(Admission::Unlimited);
        let latest = self.delayed.iter().map(|Reverse((until, _))| *until).max();
        if let Some(latest) = latest {
            self.start_delayed(latest);
        }
    }

    /// Readable when [`reap`](IoQueue::reap) may find ended requests; reap makes it unreadable.
    /// `None` for the sync engine, whose requests have ended when [`submit`](IoQueue::submit)
    /// returns.
    pub fn completions(&self) -> Option<BorrowedFd<'_>> {
        match &self.engine {
            Engine::Sync(_) => None,
            Engine::Uring(engine) => Some(engine.event()),
        }
    }

    /// For front ends that poll: to be called before waiting for [`completions`](
    /// IoQueue::completions). False: do not wait, there are requests to reap. After the first call,
    /// the descriptor is signalled only between a call and the next reap, which saves a system call
    /// whenever the front end does not wait.
    pub fn arm(&mut self) -> bool {
        let nothing = self.done.is_empty();
        match &mut self.engine {
            Engine::Sync(_) => nothing,
            Engine::Uring(engine) => engine.arm() && nothing,
        }
    }

    /// When [`reap`](IoQueue::reap) and [`submit`](IoQueue::submit) must be called again even
    /// if nothing becomes readable: a request is delayed or held until then, or the kernel had no
    /// memory.
    pub fn due(&self) -> Option<Instant> {
        if let Engine::Uring(engine) = &self.engine
            && engine.has_unsubmitted()
        {
            return Some(Instant::now() + RETRY);
        }
        let delayed = self.delayed.peek().map(|Reverse((until, _))| *until);
        [delayed, self.held_until].into_iter().flatten().min()
    }

    /// Requests that were enqueued and have not been reaped.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.done.len()
    }
}

/// The interval between attempts to submit when the kernel has no memory.
const RETRY: Duration = Duration::from_millis(1);

/// The longest wait until held requests are tried again, since the limits may have changed.
const HELD_RETRY: Duration = Duration::from_millis(50);

const RING: &str = "io_uring";
const RING_REMEDY: &str = "choose engine `sync`";

/// Taking and issuing.
impl IoQueue {
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

    /// Stores a request, and records its receipt.
    fn enter(&mut self, request: Request, token: u64, has_place: bool) -> u32 {
        let head = &self.disk.counters_by_queue().head;
        let in_flight = head.enter();
        let sectors = request.whole_bytes() / SECTOR_BYTES as u64;
        let seek_sectors = match has_place {
            true => head.move_to(request.sector, sectors),
            false => None,
        };
        let received_ns = *self.received_ns.get_or_insert_with(monotonic_ns);
        let interarrival_ns = head.arrive(received_ns);
        let received = ReceivedRequest {
            request,
            id: self.id(),
            received_ns,
            in_flight,
            seek_sectors,
            interarrival_ns,
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.request_received(&received);
        }
        let slot = Slot {
            token,
            received,
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

    /// Issues requests that are held, as far as `admission` allows.
    fn issue_held(&mut self, admission: Admission) {
        self.held_until = None;
        if self.held.is_empty() {
            return;
        }
        self.received_ns = None;
        let mut now_ns = monotonic_ns();
        while let Some(slot) = self.held.front().copied() {
            let request = self.slots[slot as usize].received.request;
            let throttle = self.disk.throttle();
            match admission {
                Admission::Unlimited => throttle.charge(&request, now_ns),
                Admission::Limited => {
                    if let Err(due_ns) = throttle.admit(&request, now_ns) {
                        let wait = Duration::from_nanos(due_ns - now_ns);
                        self.held_until = Some(Instant::now() + wait.min(HELD_RETRY));
                        return;
                    }
                }
            }
            throttle.release(1);
            self.held.pop_front();
            now_ns = self.issue(slot, now_ns);
        }
    }

    /// Issues a request at `now_ns`, and returns the time after that.
    fn issue(&mut self, slot: u32, now_ns: u64) -> u64 {
        let noted = &mut self.slots[slot as usize];
        noted.issued_ns = Some(now_ns);
        if let Some(injection_for) = self.disk.injector().injection_for(&noted.received.request) {
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
                let ReceivedRequest {
                    id, received_ns, ..
                } = self.slots[slot as usize].received;
                let disk = &self.disk;
                let mark = |mark: &RequestMark| disk.mark(mark, id, received_ns);
                engine.begin(slot, mark, work, disk);
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
            self.received_ns = None;
            let time = *now_ns.get_or_insert_with(monotonic_ns);
            now_ns = Some(self.start(slot, time));
        }
    }
}

/// Completion.
impl IoQueue {
    /// Collects the requests that the engine has finished.
    fn collect(&mut self) {
        let Engine::Uring(engine) = &mut self.engine else {
            return;
        };
        engine.reap(&self.disk, &mut self.works, &mut self.ended);
        if self.ended.is_empty() {
            return;
        }
        self.received_ns = None;
        let now_ns = monotonic_ns();
        let mut ended = std::mem::take(&mut self.ended);
        for (slot, outcome) in ended.drain(..) {
            self.finish(slot, outcome, now_ns);
        }
        self.ended = ended;
    }

    fn finish_at_once(&mut self, slot: u32, outcome: Outcome) {
        let now_ns = self.slots[slot as usize].received.received_ns;
        self.finish(slot, outcome, now_ns);
    }

    /// Ends a request: records it, and queues it to be reaped.
    fn finish(&mut self, slot: u32, outcome: Outcome, now_ns: u64) {
        let Slot {
            token,
            received,
            issued_ns,
            ..
        } = self.slots[slot as usize];
        let Request { op, bytes, .. } = received.request;
        let latency_ns = now_ns.saturating_sub(received.received_ns);
        self.counters.count(op, bytes, outcome, latency_ns);
        if let Some(recorder) = &mut self.recorder {
            recorder.request_ended(&EndedRequest {
                received,
                submitted_ns: issued_ns,
                ended_ns: now_ns,
                outcome,
            });
        }
        self.disk.counters_by_queue().head.leave(1);
        self.free.push(slot);
        self.done.push(Completion { token, outcome });
    }
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        // The kernel may still write to memory of the guest or of the I/O queue. Delayed and held
        // requests have not started, and never will.
        if let Engine::Uring(engine) = &mut self.engine {
            engine.drain_ring(&self.disk, &mut self.works);
        }
        self.disk.throttle().release(self.held.len());
        let under_way = self.slots.len() - self.free.len();
        self.disk.counters_by_queue().head.leave(under_way);
        self.disk.counters_by_queue().close(&self.counters);
    }
}
