//! [`Ring`]: the available and the used ring of a queue (virtio 1.2, section 2.7), with the
//! requests in flight tracked for recovery after a crash.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::chain::Table;
use super::inflight::Inflight;
use super::memory::GuestMemory;

/// Maximum number of descriptors of a queue. QEMU has the same limit.
pub const QUEUE_SIZE_MAX: u16 = 1024;

/// The location of a queue, in the guest's addresses.
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
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC` was negotiated.
    pub indirect: bool,
}

/// Why a ring cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// It is outside the guest's memory, not aligned, or of an invalid size.
    #[error("a ring of {size} descriptors is outside the guest's memory, or not aligned")]
    Layout {
        /// Its number of descriptors.
        size: u16,
    },
    /// The content of the rings is invalid, or they are missing.
    #[error("{0}")]
    Queue(virtio_queue::Error),
    /// A descriptor beyond the queue.
    #[error("descriptor {head} is beyond its queue of {size}")]
    Head {
        /// Its index.
        head: u16,
        /// The size of the queue.
        size: u16,
    },
}

impl RingError {
    /// Whether it is outside the guest's current memory.
    pub fn is_missing(&self) -> bool {
        matches!(self, RingError::Queue(virtio_queue::Error::GuestMemory(_)))
    }
}

impl From<virtio_queue::Error> for RingError {
    fn from(error: virtio_queue::Error) -> RingError {
        RingError::Queue(error)
    }
}

/// The rings of a running queue.
#[derive(Debug)]
pub struct Ring {
    queue: Queue,
    table: Table,
    inflight: Option<Inflight>,
    /// Requests that an earlier back end had taken and not answered, oldest first.
    unfinished: VecDeque<u16>,
}

impl Ring {
    /// Continues with the rings in memory. `base` is the next index of the available ring, unless
    /// `inflight` has a better one.
    ///
    /// # Errors
    /// The rings are outside the guest's memory.
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
        // The queue treats an available ring at 0 as unset.
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
            unfinished: VecDeque::new(),
        };
        let mut base = base;
        if let Some(inflight) = &mut ring.inflight {
            ring.unfinished = inflight.recover(used_idx, layout.size).into();
            base = used_idx.wrapping_add(ring.unfinished.len() as u16);
        }
        ring.queue.set_next_avail(base);
        Ok(ring)
    }

    /// The table of the heads.
    pub fn table(&self) -> Table {
        self.table
    }

    /// The next index of the available ring.
    pub fn next_available(&self) -> u16 {
        self.queue.next_avail()
    }

    /// The number of waiting requests.
    ///
    /// # Errors
    /// The ring is missing, or has more entries than its size.
    pub fn waiting(&self, memory: &GuestMemory) -> Result<usize, RingError> {
        let available = self.queue.avail_idx(memory, Ordering::Acquire)?.0;
        let new = available.wrapping_sub(self.queue.next_avail());
        if new > self.queue.size() {
            return Err(virtio_queue::Error::InvalidAvailRingIndex.into());
        }
        Ok(usize::from(new) + self.unfinished.len())
    }

    /// Takes `count` requests, which [wait](Ring::waiting): the heads of their chains are appended
    /// to `heads`. Requests of an earlier back end come first, in their order.
    ///
    /// # Errors
    /// The content of the ring is invalid. The requests in `heads` were removed from the ring.
    pub fn take(
        &mut self,
        memory: &GuestMemory,
        count: usize,
        heads: &mut VecDeque<u16>,
    ) -> Result<(), RingError> {
        let old = count.min(self.unfinished.len());
        heads.extend(self.unfinished.drain(..old));
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
                inflight.add(head);
            }
            heads.push_back(head);
        }
        // The driver has taken back entries, or memory was removed.
        match heads.len() - before < count - old {
            true => Err(virtio_queue::Error::InvalidAvailRingIndex.into()),
            false => Ok(()),
        }
    }

    /// Returns the request that began with `head`; `written` bytes of its buffers were written.
    ///
    /// # Errors
    /// The ring is missing.
    pub fn put(&mut self, memory: &GuestMemory, head: u16, written: u32) -> Result<(), RingError> {
        // All of it or nothing: a missing part may be added again, and then it is put once.
        self.queue.used_idx(memory, Ordering::Relaxed)?;
        if let Some(inflight) = &mut self.inflight {
            inflight.set_last_batch(head);
        }
        self.queue.add_used(memory, head, written)?;
        if let Some(inflight) = &mut self.inflight {
            inflight.remove(head, self.queue.next_used());
        }
        Ok(())
    }

    /// Whether the driver requires a notification for the requests that were returned since the
    /// last call.
    ///
    /// # Errors
    /// The ring is missing.
    pub fn wants_call(&mut self, memory: &GuestMemory) -> Result<bool, RingError> {
        // Its fence orders the returned requests before the flags that are read below.
        let needs_call = self.queue.needs_notification(memory)?;
        if self.queue.event_idx_enabled() {
            return Ok(needs_call);
        }
        let flags: u16 = memory
            .load(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed)
            .map_err(virtio_queue::Error::GuestMemory)?;
        Ok(u16::from_le(flags) & VRING_AVAIL_F_NO_INTERRUPT as u16 == 0)
    }

    /// Enables the driver's kick for the next request. Returns true if there is one already.
    ///
    /// # Errors
    /// The ring is missing.
    pub fn arm(&mut self, memory: &GuestMemory) -> Result<bool, RingError> {
        Ok(self.queue.enable_notification(memory)? || !self.unfinished.is_empty())
    }

    /// Disables the driver's kicks.
    ///
    /// # Errors
    /// The ring is missing.
    pub fn disarm(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        Ok(self.queue.disable_notification(memory)?)
    }
}
