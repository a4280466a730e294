//! [`BlockQueue`]: one queue of a virtio block device: passes requests from its ring to an I/O
//! queue, and returns ended ones.
//!
//! An invalid request ends with an error. A request that cannot be answered breaks the queue: no
//! more requests are read from it until the driver sets it up again. Other queues and other disks
//! are not affected.
#![allow(unsafe_code)] // Data go between the guest's memory and the engine without a copy of ours.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::iovec;
use virtio_bindings::bindings::virtio_blk as abi;
use vm_memory::{GuestAddress, GuestMemoryBackend};

use super::chain::{Chain, ChainError};
use super::command::{Action, Command, CommandData, NoStatus, SERIAL_BYTES, read};
use super::guard;
use super::memory::{GuestMemory, GuestRegion, in_one_region};
use super::ring::{Ring, RingError};
use crate::disk::{DiskError, ServedDisk};
use crate::io_queue::{Completion, IoQueue};
use crate::{Outcome, Request};

/// Maximum number of requests that are processed at once, so that ended ones are returned in
/// between.
const BATCH_MAX: usize = 64;

/// How long a request waits for memory that was removed. QEMU needs less than a millisecond to add
/// it again in another layout.
const MEMORY_WAIT: Duration = Duration::from_secs(1);

/// Why a queue is broken.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// An error of its rings.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A chain without a valid end.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A request that cannot be answered.
    #[error(transparent)]
    NoStatus(#[from] NoStatus),
    /// The driver makes a buffer available that is still in use.
    #[error("descriptor {0} is made available again before its request has ended")]
    AlreadyAvailable(u16),
    /// Data outside of memory. It does not break the queue: the request waits, or ends with an
    /// error.
    #[error("a request has data outside the guest's memory")]
    NoMemory,
    /// Memory that the front end has shared was truncated.
    #[error("the front end has truncated the file of its guest's memory")]
    Cut,
    /// The engine failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl Broken {
    /// Whether it may succeed after a change of memory.
    fn is_retryable(&self) -> bool {
        let table = matches!(self, Broken::Chain(ChainError::Table(_)));
        table || matches!(self, Broken::NoStatus(_))
    }
}

/// A queue and its requests in flight. It belongs to one thread.
pub struct BlockQueue {
    disk: Arc<ServedDisk>,
    io_queue: IoQueue,
    ring: Ring,
    memory: Rc<GuestMemory>,
    /// The value of [`guard::cuts`] when all memory was intact.
    cuts: u64,
    /// The driver cannot flush.
    write_through: bool,
    /// By the first descriptor of a request.
    slots: Vec<Slot>,
    broken: bool,
    /// Injected delays are ended.
    ends_delays: bool,
    /// Taken from the ring and not started.
    pending: VecDeque<u16>,
    /// Ended requests, with the number of bytes written, that could not be put into the ring, which
    /// is missing.
    unreturned: VecDeque<(u16, u32)>,
    /// Ended requests of which the driver was not notified.
    ended: usize,
    /// Until when missing memory may be added again.
    memory_wait_until: Option<Instant>,
    /// The first of `pending` waits for memory.
    waits: bool,
    // Reused allocations.
    chain: Chain,
    data_memory: CommandData,
    done: Vec<Completion>,
}

/// A request in flight.
#[derive(Default)]
struct Slot {
    /// Its memory, which stays mapped until it ends. `None`: the slot is free.
    memory: Option<Rc<GuestMemory>>,
    status: GuestAddress,
    answer_bytes: u32,
    /// The requests that follow this part, last one first.
    more: Vec<Request>,
}

/// The result of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// A request was started or has ended.
    pub progress: bool,
    /// The driver requires a notification.
    pub call: bool,
}

impl BlockQueue {
    /// The queue of this ring in this memory. `size` is its number of descriptors.
    pub fn new(
        disk: &Arc<ServedDisk>,
        io_queue: IoQueue,
        ring: Ring,
        memory: &Arc<GuestMemory>,
        write_through: bool,
    ) -> BlockQueue {
        let size = usize::from(ring.table().size);
        BlockQueue {
            disk: Arc::clone(disk),
            io_queue,
            ring,
            memory: Rc::new(GuestMemory::clone(memory)),
            cuts: 0,
            write_through,
            slots: std::iter::repeat_with(Slot::default).take(size).collect(),
            broken: false,
            ends_delays: false,
            pending: VecDeque::new(),
            unreturned: VecDeque::new(),
            ended: 0,
            memory_wait_until: None,
            waits: false,
            chain: Chain::default(),
            data_memory: CommandData::default(),
            done: Vec::new(),
        }
    }

    /// Uses this memory from now on. Requests in flight keep theirs. `removed` is when a region was
    /// removed.
    pub fn remap(&mut self, memory: &Arc<GuestMemory>, removed: Option<Instant>) {
        self.memory = Rc::new(GuestMemory::clone(memory));
        self.cuts = 0;
        self.memory_wait_until = removed.map(|removed| removed + MEMORY_WAIT);
        self.waits = false;
    }

    /// Ends injected delays: the queue ends, and the front end waits for it.
    pub fn end_delays(&mut self) {
        self.ends_delays = true;
    }

    /// The I/O queue, for waiting on it.
    pub fn io_queue(&self) -> &IoQueue {
        &self.io_queue
    }

    /// When the next round is due even if nothing happens until then.
    pub fn due(&self) -> Option<Instant> {
        let drain_timeout = self.memory_wait_until.filter(|_| self.waits);
        [self.io_queue.due(), drain_timeout]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether no request is in flight.
    pub fn is_idle(&self) -> bool {
        self.io_queue.in_flight() == 0 && self.unreturned.is_empty() && self.ended == 0
    }

    /// The next index of the available ring.
    pub fn next_available(&self) -> u16 {
        let next = self.ring.next_available();
        next.wrapping_sub(self.pending.len() as u16)
    }

    /// The number of requests that can be started now: none of a broken queue, or while its memory
    /// is missing.
    ///
    /// # Errors
    /// The queue breaks.
    pub fn waiting(&mut self) -> Result<usize, Broken> {
        if self.broken {
            return Ok(0);
        }
        self.check_memory().map_err(|error| self.broke(error))?;
        if self.waits && !self.waits_for_memory() {
            self.waits = false;
        }
        if self.waits {
            return Ok(0);
        }
        match self.ring.waiting(&self.memory) {
            Ok(waiting) => Ok(waiting + self.pending.len()),
            Err(error) if error.is_missing() => Ok(0),
            Err(error) => Err(self.broke(error)),
        }
    }

    /// Takes `waiting` requests, or the maximum of a batch, submits them, and ends those that are
    /// done.
    ///
    /// # Errors
    /// The queue breaks; requests in flight still end in later rounds.
    pub fn round(&mut self, waiting: usize) -> Result<Round, Broken> {
        self.io_queue.begin();
        let result = self.take_and_end(waiting.min(BATCH_MAX));
        self.io_queue.end();
        result.map_err(|error| self.broke(error))
    }

    /// Enables the driver's kick for the next request, and the engine's event for the next end.
    /// Returns true if there is already something to do.
    ///
    /// # Errors
    /// The queue breaks.
    pub fn arm(&mut self) -> Result<bool, Broken> {
        let ended = self.arm_ends();
        if self.broken {
            return Ok(ended);
        }
        match self.ring.arm(&self.memory) {
            Ok(more) => Ok(more && !self.waits || ended),
            Err(error) if error.is_missing() => Ok(ended),
            Err(error) => Err(self.broke(error)),
        }
    }

    /// Enables the engine's event only. Returns true if a request has already ended.
    pub fn arm_ends(&mut self) -> bool {
        !self.io_queue.arm()
    }

    /// Disables the driver's kicks.
    ///
    /// # Errors
    /// The queue breaks.
    pub fn disarm(&mut self) -> Result<(), Broken> {
        if self.broken {
            return Ok(());
        }
        match self.ring.disarm(&self.memory) {
            Err(error) if !error.is_missing() => Err(self.broke(error)),
            _ => Ok(()),
        }
    }

    /// Checks that all memory is intact: the zeroes that replace truncated memory are not requests.
    fn check_memory(&mut self) -> Result<(), Broken> {
        let cuts = guard::cuts();
        if cuts != self.cuts {
            if self.memory.iter().any(GuestRegion::is_cut) {
                return Err(Broken::Cut);
            }
            self.cuts = cuts;
        }
        Ok(())
    }

    fn broke(&mut self, error: impl Into<Broken>) -> Broken {
        self.broken = true;
        error.into()
    }

    fn take_and_end(&mut self, count: usize) -> Result<Round, Broken> {
        if self.ends_delays {
            self.io_queue.end_delays();
        }
        let started = self.take(count);
        // Requests that were started before the queue broke are executed.
        self.io_queue.submit()?;
        self.end_done()?;
        self.return_ended()?;
        let started = started?;
        let ended = std::mem::take(&mut self.ended);
        Ok(Round {
            progress: started > 0 || ended > 0,
            call: ended > 0 && self.wants_call()?,
        })
    }

    fn wants_call(&mut self) -> Result<bool, RingError> {
        match self.ring.wants_call(&self.memory) {
            // An unnecessary notification is harmless.
            Err(error) if error.is_missing() => Ok(true),
            asked => asked,
        }
    }

    /// Takes and starts up to `count` requests; returns their number.
    fn take(&mut self, count: usize) -> Result<usize, Broken> {
        if count == 0 {
            return Ok(0);
        }
        let new = count.saturating_sub(self.pending.len());
        let taken = match new {
            0 => Ok(()),
            _ => self.ring.take(&self.memory, new, &mut self.pending),
        };
        let mut started = 0;
        while let Some(head) = self.pending.front().copied() {
            match self.start(head) {
                // It may wait for memory when it finds this. Afterwards, it tries once more.
                Err(Broken::NoMemory) => {
                    self.waits = true;
                    return Ok(started);
                }
                Err(error) if error.is_retryable() && self.waits_for_memory() => {
                    self.waits = true;
                    return Ok(started);
                }
                result => {
                    self.pending.pop_front();
                    started += 1;
                    result?;
                }
            }
        }
        taken?;
        Ok(started)
    }

    /// Memory was removed recently, so missing memory may be added again: a front end changes a
    /// region by removing and adding it.
    fn waits_for_memory(&self) -> bool {
        self.memory_wait_until
            .is_some_and(|until| Instant::now() < until)
    }

    /// Decodes the request that begins with `head`, and passes it to the I/O queue.
    fn start(&mut self, head: u16) -> Result<(), Broken> {
        if self.slots[usize::from(head)].memory.is_some() {
            return Err(Broken::AlreadyAvailable(head));
        }
        self.chain.follow(&self.memory, self.ring.table(), head)?;
        let command = read(
            &self.memory,
            &self.chain,
            self.write_through,
            &mut self.data_memory,
        )?;
        // Decoding it may have found that the memory is truncated.
        self.check_memory()?;
        if command.action.lacks_memory() && self.waits_for_memory() {
            return Err(Broken::NoMemory);
        }
        let slot = &mut self.slots[usize::from(head)];
        slot.memory = Some(Rc::clone(&self.memory));
        slot.status = command.status;
        slot.answer_bytes = command.answer_bytes;
        slot.more.clear();
        self.act(head, &command)
    }

    fn act(&mut self, head: u16, command: &Command) -> Result<(), Broken> {
        let token = u64::from(head);
        match command.action {
            Action::Execute(request) => {
                // SAFETY: the buffers are in the guest's memory, which the slot keeps mapped until
                // the token is reaped. The guest may change them meanwhile, as it may while a
                // device reads them; their content is not used here.
                unsafe {
                    self.io_queue
                        .enqueue(request, &self.data_memory.buffers, token)
                };
            }
            Action::ExecuteRanges => {
                let slot = &mut self.slots[usize::from(head)];
                slot.more.extend(self.data_memory.ranges.drain(..).rev());
                self.next_range(head);
            }
            Action::Identify => {
                let mut serial = [0; SERIAL_BYTES];
                let name = self.disk.serial().as_bytes();
                let length = name.len().min(SERIAL_BYTES);
                serial[..length].copy_from_slice(&name[..length]);
                copy_out(&serial, &self.data_memory.buffers);
                self.finish(head, Outcome::Done)?;
            }
            Action::Reject(Some(request), outcome) => self.io_queue.reject(request, outcome, token),
            Action::Reject(None, outcome) => self.finish(head, outcome)?,
        }
        Ok(())
    }

    /// Passes the next range of a discard or a write of zeroes to the I/O queue; false if there is
    /// none.
    fn next_range(&mut self, head: u16) -> bool {
        let Some(request) = self.slots[usize::from(head)].more.pop() else {
            return false;
        };
        // SAFETY: there are no buffers.
        unsafe { self.io_queue.enqueue(request, &[], u64::from(head)) };
        true
    }

    /// Ends the requests that the I/O queue has finished.
    fn end_done(&mut self) -> Result<(), Broken> {
        loop {
            let mut done = std::mem::take(&mut self.done);
            done.clear();
            self.io_queue.reap(&mut done);
            let mut went_on = false;
            let mut finished = Ok(());
            for one in &done {
                let head = u16::try_from(one.token).expect("tokens are heads");
                if one.outcome == Outcome::Done && self.next_range(head) {
                    went_on = true;
                    continue;
                }
                // A missing ring does not prevent the others from ending.
                finished = finished.and(self.finish(head, one.outcome));
            }
            self.done = done;
            finished?;
            // Submits further parts, and requests whose injected delay has ended.
            self.io_queue.submit()?;
            if !went_on {
                return Ok(());
            }
        }
    }

    /// Answers the request that began with `head`.
    fn finish(&mut self, head: u16, outcome: Outcome) -> Result<(), RingError> {
        let slot = &mut self.slots[usize::from(head)];
        let memory = slot.memory.take().expect("what ends was on its way");
        slot.more.clear();
        let (status, written) = match outcome {
            Outcome::Done => (abi::VIRTIO_BLK_S_OK, slot.answer_bytes.saturating_add(1)),
            Outcome::Failed(_) => (abi::VIRTIO_BLK_S_IOERR, 1),
            Outcome::Unsupported => (abi::VIRTIO_BLK_S_UNSUPP, 1),
        };
        let status = status as u8;
        in_one_region(&memory, slot.status, 1)
            .expect("the status was in this memory when the request was read")
            .copy_from(&[status]);
        self.unreturned.push_back((head, written));
        self.return_ended()
    }

    /// Puts ended requests into the ring, if it is present.
    fn return_ended(&mut self) -> Result<(), RingError> {
        while let Some((head, written)) = self.unreturned.front().copied() {
            match self.ring.put(&self.memory, head, written) {
                Err(error) if error.is_missing() => return Ok(()),
                put => {
                    self.unreturned.pop_front();
                    put?;
                    self.ended += 1;
                }
            }
        }
        Ok(())
    }
}

impl Drop for BlockQueue {
    fn drop(&mut self) {
        if self.io_queue.in_flight() > 0 {
            // Only when the engine failed. The kernel may still write to this memory, so it is
            // never unmapped.
            let memories = self.slots.iter_mut().filter_map(|slot| slot.memory.take());
            memories.for_each(std::mem::forget);
        }
    }
}

/// Copies as much of `bytes` as fits the buffers.
fn copy_out(bytes: &[u8], buffers: &[iovec]) {
    let mut left = bytes;
    for buffer in buffers {
        let length = buffer.iov_len.min(left.len());
        // SAFETY: the buffer is in the guest's memory, which is mapped; `length` is within both.
        unsafe { std::ptr::copy_nonoverlapping(left.as_ptr(), buffer.iov_base.cast(), length) };
        left = &left[length..];
    }
}
