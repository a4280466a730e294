//! [`BlockQueue`]: one queue of a virtio block device: takes requests from its ring into a lane, and
//! puts what ended back.
//!
//! What a guest does wrong ends its request with an error. What leaves no place for an error breaks
//! the queue: nothing more is taken from it until the driver sets it up anew. Other queues and other
//! disks do not notice.
#![allow(unsafe_code)] // Data go between the guest's memory and the engine without a copy of ours.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::iovec;
use virtio_bindings::bindings::virtio_blk as abi;
use vm_memory::{GuestAddress, GuestMemoryBackend};

use super::chain::{Chain, ChainError};
use super::command::{Action, Cargo, Command, NoStatus, SERIAL_BYTES, read};
use super::guard;
use super::memory::{GuestMemory, GuestRegion, in_one_region};
use super::ring::{Ring, RingError};
use crate::disk::{Disk, DiskError};
use crate::lane::{Done, Lane};
use crate::{Outcome, Request};

/// Requests that are taken at once, at most, so that what ended is told in between.
const BATCH_MAX: usize = 64;

/// How long a request waits for memory that was taken away. QEMU needs less than a millisecond to
/// give it back in another shape.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why a queue takes nothing any more.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// Its rings.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A chain without an end.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A request that cannot be answered.
    #[error(transparent)]
    NoStatus(#[from] NoStatus),
    /// The driver makes a buffer available that it has not got back.
    #[error("descriptor {0} is made available again before its request has ended")]
    Twice(u16),
    /// Data that are not in memory. It breaks nothing: the request waits, or ends with an error.
    #[error("a request with data where the guest has no memory")]
    NoMemory,
    /// Memory that the front end has shared is not there any more.
    #[error("the front end has shortened the file of its guest's memory")]
    Cut,
    /// The engine gave up.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl Broken {
    /// It may be otherwise when there is other memory.
    fn may_pass(&self) -> bool {
        let table = matches!(self, Broken::Chain(ChainError::Table(_)));
        table || matches!(self, Broken::NoStatus(_))
    }
}

/// A queue and the requests that are on their way. It belongs to one thread.
pub struct BlockQueue {
    disk: Arc<Disk>,
    lane: Lane,
    ring: Ring,
    memory: Rc<GuestMemory>,
    /// What [`guard::cuts`] said when all of it was there.
    cuts: u64,
    /// The driver cannot flush.
    write_through: bool,
    /// By the descriptor that a request begins with.
    slots: Vec<Slot>,
    broken: bool,
    /// Nothing is held back.
    hurries: bool,
    /// What was taken from the ring and not begun.
    taken: VecDeque<u16>,
    /// What ended, and how much was written, but not put into the ring, which is not there.
    unsaid: VecDeque<(u16, u32)>,
    /// Requests that ended and that the driver has not been told of.
    ended: usize,
    /// Until when memory that is not there may come back.
    patient_until: Option<Instant>,
    /// The first of `taken` waits for memory.
    waits: bool,
    // Room that is used again.
    chain: Chain,
    cargo: Cargo,
    done: Vec<Done>,
}

/// A request that is on its way.
#[derive(Default)]
struct Slot {
    /// The memory it is in, which stays mapped for as long. `None`: nothing is on its way.
    memory: Option<Rc<GuestMemory>>,
    status: GuestAddress,
    answer_bytes: u32,
    /// What is to follow when this part is done, last one first.
    more: Vec<Request>,
}

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Something was taken or has ended.
    pub progress: bool,
    /// The driver wants to be told.
    pub call: bool,
}

impl BlockQueue {
    /// The queue with this ring in this memory. `size` is its number of descriptors.
    pub fn new(
        disk: &Arc<Disk>,
        lane: Lane,
        ring: Ring,
        memory: &Arc<GuestMemory>,
        write_through: bool,
    ) -> BlockQueue {
        let size = usize::from(ring.table().size);
        BlockQueue {
            disk: Arc::clone(disk),
            lane,
            ring,
            memory: Rc::new(GuestMemory::clone(memory)),
            cuts: 0,
            write_through,
            slots: std::iter::repeat_with(Slot::default).take(size).collect(),
            broken: false,
            hurries: false,
            taken: VecDeque::new(),
            unsaid: VecDeque::new(),
            ended: 0,
            patient_until: None,
            waits: false,
            chain: Chain::default(),
            cargo: Cargo::default(),
            done: Vec::new(),
        }
    }

    /// Uses this memory from now on. What is on its way keeps what it has. `removed` is when some was
    /// taken away.
    pub fn remap(&mut self, memory: &Arc<GuestMemory>, removed: Option<Instant>) {
        self.memory = Rc::new(GuestMemory::clone(memory));
        self.cuts = 0;
        self.patient_until = removed.map(|removed| removed + PATIENCE);
        self.waits = false;
    }

    /// Holds back nothing any longer that an injection delays: the queue is to end, and the front end
    /// waits for that.
    pub fn hurry(&mut self) {
        self.hurries = true;
    }

    /// The lane, for whoever waits for it.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// When a round is to be made even if nothing happens until then.
    pub fn due(&self) -> Option<Instant> {
        let patience = self.patient_until.filter(|_| self.waits);
        [self.lane.due(), patience].into_iter().flatten().min()
    }

    /// Whether there is nothing that could end.
    pub fn is_idle(&self) -> bool {
        self.lane.in_flight() == 0 && self.unsaid.is_empty() && self.ended == 0
    }

    /// The next of the available ring that is to be begun.
    pub fn next_available(&self) -> u16 {
        let next = self.ring.next_available();
        next.wrapping_sub(self.taken.len() as u16)
    }

    /// How many requests may be begun now: none of a broken queue, or while its memory is not there.
    ///
    /// # Errors
    /// The queue breaks.
    pub fn waiting(&mut self) -> Result<usize, Broken> {
        if self.broken {
            return Ok(0);
        }
        self.check_memory().map_err(|error| self.broke(error))?;
        if self.waits && !self.is_patient() {
            self.waits = false;
        }
        if self.waits {
            return Ok(0);
        }
        match self.ring.waiting(&self.memory) {
            Ok(waiting) => Ok(waiting + self.taken.len()),
            Err(error) if error.is_missing() => Ok(0),
            Err(error) => Err(self.broke(error)),
        }
    }

    /// Takes `waiting` requests, or as many as are taken at once, submits them, and ends what is
    /// done.
    ///
    /// # Errors
    /// The queue breaks; what is on its way still ends in later rounds.
    pub fn round(&mut self, waiting: usize) -> Result<Round, Broken> {
        self.lane.begin();
        let result = self.take_and_end(waiting.min(BATCH_MAX));
        self.lane.end();
        result.map_err(|error| self.broke(error))
    }

    /// Asks the driver for a kick at the next request, and the engine for a sign at the next end.
    /// True if there is something to do already.
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

    /// Asks the engine alone. True if something has ended already.
    pub fn arm_ends(&mut self) -> bool {
        !self.lane.arm()
    }

    /// Asks the driver not to kick.
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

    /// All memory is that of the front end: of what was cut, the zeroes in its place are no
    /// requests.
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
        if self.hurries {
            self.lane.hurry();
        }
        let begun = self.take(count);
        // What was taken before the queue broke is carried out.
        self.lane.submit()?;
        self.end_done()?;
        self.say()?;
        let begun = begun?;
        let ended = std::mem::take(&mut self.ended);
        Ok(Round {
            progress: begun > 0 || ended > 0,
            call: ended > 0 && self.wants_call()?,
        })
    }

    fn wants_call(&mut self) -> Result<bool, RingError> {
        match self.ring.wants_call(&self.memory) {
            // One too many does no harm.
            Err(error) if error.is_missing() => Ok(true),
            asked => asked,
        }
    }

    /// Takes and begins up to `count` requests; how many those were.
    fn take(&mut self, count: usize) -> Result<usize, Broken> {
        if count == 0 {
            return Ok(0);
        }
        let new = count.saturating_sub(self.taken.len());
        let taken = match new {
            0 => Ok(()),
            _ => self.ring.take(&self.memory, new, &mut self.taken),
        };
        let mut begun = 0;
        while let Some(head) = self.taken.front().copied() {
            match self.start(head) {
                // It was patient when it found this. If it no longer is, it looks once more.
                Err(Broken::NoMemory) => {
                    self.waits = true;
                    return Ok(begun);
                }
                Err(error) if error.may_pass() && self.is_patient() => {
                    self.waits = true;
                    return Ok(begun);
                }
                started => {
                    self.taken.pop_front();
                    begun += 1;
                    started?;
                }
            }
        }
        taken?;
        Ok(begun)
    }

    /// Memory was taken away lately, so what is not there may be about to come back: a front end
    /// changes a region by taking it away and adding it anew.
    fn is_patient(&self) -> bool {
        self.patient_until
            .is_some_and(|until| Instant::now() < until)
    }

    /// Reads the request that begins with `head`, and hands it to the lane.
    fn start(&mut self, head: u16) -> Result<(), Broken> {
        if self.slots[usize::from(head)].memory.is_some() {
            return Err(Broken::Twice(head));
        }
        self.chain.follow(&self.memory, self.ring.table(), head)?;
        let command = read(
            &self.memory,
            &self.chain,
            self.write_through,
            &mut self.cargo,
        )?;
        // Reading it may have found that the memory is gone.
        self.check_memory()?;
        if command.action.lacks_memory() && self.is_patient() {
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
            Action::Carry(request) => {
                // SAFETY: the buffers are in the guest's memory, which the slot keeps mapped until
                // the token is reaped. The guest may change them meanwhile, as it may while a
                // device reads them; nothing here looks at their content.
                unsafe { self.lane.take(request, &self.cargo.buffers, token) };
            }
            Action::CarryRanges => {
                let slot = &mut self.slots[usize::from(head)];
                slot.more.extend(self.cargo.ranges.drain(..).rev());
                self.next_range(head);
            }
            Action::Identify => {
                let mut serial = [0; SERIAL_BYTES];
                let name = self.disk.serial().as_bytes();
                let length = name.len().min(SERIAL_BYTES);
                serial[..length].copy_from_slice(&name[..length]);
                copy_out(&serial, &self.cargo.buffers);
                self.finish(head, Outcome::Done)?;
            }
            Action::Refuse(Some(request), outcome) => self.lane.refuse(request, outcome, token),
            Action::Refuse(None, outcome) => self.finish(head, outcome)?,
        }
        Ok(())
    }

    /// Hands the next range of a discard or a write of zeroes to the lane; false if there is none.
    fn next_range(&mut self, head: u16) -> bool {
        let Some(request) = self.slots[usize::from(head)].more.pop() else {
            return false;
        };
        // SAFETY: there are no buffers.
        unsafe { self.lane.take(request, &[], u64::from(head)) };
        true
    }

    /// Ends what the lane has done.
    fn end_done(&mut self) -> Result<(), Broken> {
        loop {
            let mut done = std::mem::take(&mut self.done);
            done.clear();
            self.lane.reap(&mut done);
            let mut went_on = false;
            let mut finished = Ok(());
            for one in &done {
                let head = u16::try_from(one.token).expect("tokens are heads");
                if one.outcome == Outcome::Done && self.next_range(head) {
                    went_on = true;
                    continue;
                }
                // A ring that went away does not keep the others from ending.
                finished = finished.and(self.finish(head, one.outcome));
            }
            self.done = done;
            finished?;
            // What goes on, and what an injection held back until now.
            self.lane.submit()?;
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
        self.unsaid.push_back((head, written));
        self.say()
    }

    /// Puts what ended into the ring, as far as that is there.
    fn say(&mut self) -> Result<(), RingError> {
        while let Some((head, written)) = self.unsaid.front().copied() {
            match self.ring.put(&self.memory, head, written) {
                Err(error) if error.is_missing() => return Ok(()),
                put => {
                    self.unsaid.pop_front();
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
        if self.lane.in_flight() > 0 {
            // Only when the engine gave up. The kernel may still write to this memory, so it stays
            // mapped for good.
            let memories = self.slots.iter_mut().filter_map(|slot| slot.memory.take());
            memories.for_each(std::mem::forget);
        }
    }
}

/// Copies as much of `bytes` as the buffers take.
fn copy_out(bytes: &[u8], buffers: &[iovec]) {
    let mut left = bytes;
    for buffer in buffers {
        let length = buffer.iov_len.min(left.len());
        // SAFETY: the buffer is in the guest's memory, which is mapped; `length` is within both.
        unsafe { std::ptr::copy_nonoverlapping(left.as_ptr(), buffer.iov_base.cast(), length) };
        left = &left[length..];
    }
}
