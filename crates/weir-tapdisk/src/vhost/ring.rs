//! [`Ring`]: the available and the used ring of a queue (virtio 1.2, section 2.7), with what is in
//! flight noted for the time after a crash.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::chain::Table;
use super::inflight::Inflight;
use super::memory::GuestMemory;

/// Descriptors that a queue may have, at most. QEMU's bound is the same.
pub const QUEUE_SIZE_MAX: u16 = 1024;

/// Where a driver has put its queue, in the guest's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of descriptors, a power of two.
    pub size: u16,
    /// The descriptor table.
    pub table: GuestAddress,
    /// The available ring.
    pub available: GuestAddress,
    /// The used ring.
    pub used: GuestAddress,
    /// What was negotiated: `VIRTIO_F_EVENT_IDX`.
    pub event_idx: bool,
    /// What was negotiated: `VIRTIO_F_INDIRECT_DESC`.
    pub indirect: bool,
}

/// Why a ring cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// It is not in the guest's memory, not aligned, or of a size that cannot be.
    #[error("a ring of {size} descriptors that is not in the guest's memory, or not aligned")]
    Layout {
        /// Its number of descriptors.
        size: u16,
    },
    /// What the rings say cannot be, or they are gone.
    #[error("{0}")]
    Queue(virtio_queue::Error),
    /// A descriptor that the queue does not have.
    #[error("descriptor {head} of a queue of {size}")]
    Head {
        /// What was made available.
        head: u16,
        /// What there is.
        size: u16,
    },
}

impl RingError {
    /// It is not in the guest's memory, as that is now.
    pub fn is_missing(&self) -> bool {
        matches!(self, RingError::Queue(virtio_queue::Error::GuestMemory(_)))
    }
}

impl From<virtio_queue::Error> for RingError {
    fn from(error: virtio_queue::Error) -> RingError {
        RingError::Queue(error)
    }
}

/// The rings of a queue that runs.
#[derive(Debug)]
pub struct Ring {
    queue: Queue,
    table: Table,
    inflight: Option<Inflight>,
    /// What a back end before us had taken and not answered, oldest first.
    left_over: VecDeque<u16>,
}

impl Ring {
    /// Goes on where the rings are. `base` is the next of the available ring, unless `inflight`
    /// knows better.
    ///
    /// # Errors
    /// The rings are not in the guest's memory.
    pub fn new(
        memory: &GuestMemory,
        layout: &Layout,
        base: u16,
        inflight: Option<Inflight>,
    ) -> Result<Ring, RingError> {
        let mut queue = Queue::new(QUEUE_SIZE_MAX)?;
        queue.try_set_size(layout.size)?;
        queue.try_set_desc_table_address(layout.table)?;
        queue.try_set_avail_ring_address(layout.available)?;
        queue.try_set_used_ring_address(layout.used)?;
        queue.set_event_idx(layout.event_idx);
        queue.set_ready(true);
        // The queue takes an available ring at 0 for one that was never set.
        if !queue.is_valid(memory) || layout.available.0 == 0 {
            return Err(RingError::Layout { size: layout.size });
        }
        let used_idx = queue.used_idx(memory, Ordering::Acquire)?.0;
        queue.set_next_used(used_idx);
        let mut ring = Ring {
            queue,
            table: Table {
                address: layout.table,
                size: layout.size,
                indirect: layout.indirect,
            },
            inflight,
            left_over: VecDeque::new(),
        };
        let mut base = base;
        if let Some(inflight) = &mut ring.inflight {
            ring.left_over = inflight.recover(used_idx, layout.size).into();
            base = used_idx.wrapping_add(ring.left_over.len() as u16);
        }
        ring.queue.set_next_avail(base);
        Ok(ring)
    }

    /// The table that heads are of.
    pub fn table(&self) -> Table {
        self.table
    }

    /// The next of the available ring that will be taken.
    pub fn next_available(&self) -> u16 {
        self.queue.next_avail()
    }

    /// How many requests wait to be taken.
    ///
    /// # Errors
    /// The ring is gone, or says that there are more than it has room for.
    pub fn waiting(&self, memory: &GuestMemory) -> Result<usize, RingError> {
        let available = self.queue.avail_idx(memory, Ordering::Acquire)?.0;
        let new = available.wrapping_sub(self.queue.next_avail());
        if new > self.queue.size() {
            return Err(virtio_queue::Error::InvalidAvailRingIndex.into());
        }
        Ok(usize::from(new) + self.left_over.len())
    }

    /// Takes `count` requests, of which so many [wait](Ring::waiting): the heads of their chains are appended to `heads`. What was
    /// left over by a back end before us comes first, in its order.
    ///
    /// # Errors
    /// What the ring says cannot be. What is in `heads` was taken.
    pub fn take(
        &mut self,
        memory: &GuestMemory,
        count: usize,
        heads: &mut VecDeque<u16>,
    ) -> Result<(), RingError> {
        let old = count.min(self.left_over.len());
        heads.extend(self.left_over.drain(..old));
        if old == count {
            return Ok(());
        }
        let size = self.queue.size();
        let before = heads.len();
        for chain in self.queue.iter(memory)?.take(count - old) {
            let head = chain.head_index();
            if head >= size {
                return Err(RingError::Head { head, size });
            }
            if let Some(inflight) = &mut self.inflight {
                inflight.taken(head);
            }
            heads.push_back(head);
        }
        // A driver that takes back what it made available, or memory that went away.
        match heads.len() - before < count - old {
            true => Err(virtio_queue::Error::InvalidAvailRingIndex.into()),
            false => Ok(()),
        }
    }

    /// Says that the request that began with `head` has ended; `written` bytes of its buffers were
    /// written.
    ///
    /// # Errors
    /// The ring is gone.
    pub fn put(&mut self, memory: &GuestMemory, head: u16, written: u32) -> Result<(), RingError> {
        // All of it or nothing: what is missing may come back, and then it is put once.
        self.queue.used_idx(memory, Ordering::Relaxed)?;
        if let Some(inflight) = &mut self.inflight {
            inflight.ending(head);
        }
        self.queue.add_used(memory, head, written)?;
        if let Some(inflight) = &mut self.inflight {
            inflight.ended(head, self.queue.next_used());
        }
        Ok(())
    }

    /// Whether the driver wants to be told of what was put since it was asked last.
    ///
    /// # Errors
    /// The ring is gone.
    pub fn wants_call(&mut self, memory: &GuestMemory) -> Result<bool, RingError> {
        // The fence in it orders what was put before the flags that are read below.
        let wanted = self.queue.needs_notification(memory)?;
        if self.queue.event_idx_enabled() {
            return Ok(wanted);
        }
        let flags: u16 = memory
            .load(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed)
            .map_err(virtio_queue::Error::GuestMemory)?;
        Ok(u16::from_le(flags) & VRING_AVAIL_F_NO_INTERRUPT as u16 == 0)
    }

    /// Asks the driver for a kick at the next request. True if there is one already.
    ///
    /// # Errors
    /// The ring is gone.
    pub fn arm(&mut self, memory: &GuestMemory) -> Result<bool, RingError> {
        Ok(self.queue.enable_notification(memory)? || !self.left_over.is_empty())
    }

    /// Asks the driver not to kick.
    ///
    /// # Errors
    /// The ring is gone.
    pub fn disarm(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        Ok(self.queue.disable_notification(memory)?)
    }
}
