//! [`Inflight`]: tracks the requests in flight in memory that outlives this process (vhost-user,
//! "Inflight I/O tracking").
//!
//! The front end keeps the memory. After a crash it passes it to the next back end, which then
//! knows the requests that the guest waits for, and their order. A request is entered before it is
//! processed and removed after its end is in the used ring. Between these two steps only
//! `last_batch_head` and `used_idx` show whether the guest was answered.
//!
//! A crash stops a thread between two instructions, so earlier stores persist; the stores must be
//! made in the order written here, which release ordering ensures.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::{AtomicAccess, Bytes, FileOffset, MmapRegion, VolatileMemory};

use super::VhostError;
use super::guard::{Guard, Share};
use super::memory::check_file;

/// Offsets of the fields of a queue's region (`struct QueueRegionSplit`).
mod region {
    pub const VERSION: usize = 8;
    pub const ENTRIES: usize = 10;
    pub const LAST_BATCH_HEAD: usize = 12;
    pub const USED_IDX: usize = 14;
    pub const HEADER_BYTES: usize = 16;
}

/// Offsets of the fields of a descriptor's state (`struct DescStateSplit`).
mod entry {
    pub const INFLIGHT: usize = 0;
    pub const NEXT: usize = 6;
    pub const COUNTER: usize = 8;
    pub const BYTES: usize = 16;
}

/// The only version of the layout.
const VERSION: u16 = 1;
/// Regions of queues start at multiples of a cache line.
const ALIGNMENT: usize = 64;

/// The memory of all queues.
#[derive(Debug)]
pub struct InflightMemory {
    // Dropped before the memory that it guards.
    _guard: Guard,
    mapping: MmapRegion<()>,
    queues: u16,
    queue_size: u16,
}

fn stride(queue_size: u16) -> usize {
    let bytes = region::HEADER_BYTES + entry::BYTES * usize::from(queue_size);
    bytes.next_multiple_of(ALIGNMENT)
}

/// Creates memory for `queues` queues of `queue_size` descriptors (`VHOST_USER_GET_INFLIGHT_FD`),
/// and its description for the front end.
///
/// # Errors
/// The system has no more memory or file descriptors.
pub fn create(queues: u16, queue_size: u16) -> std::io::Result<(VhostUserInflight, File)> {
    let bytes = stride(queue_size) * usize::from(queues);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("weir-inflight", flags)?;
    ftruncate(&file, bytes as u64)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    let description = VhostUserInflight::new(bytes as u64, 0, queues, queue_size);
    Ok((description, File::from(file)))
}

impl InflightMemory {
    /// Maps the memory that the front end kept (`VHOST_USER_SET_INFLIGHT_FD`).
    ///
    /// # Errors
    /// It is smaller than its description, or cannot be mapped.
    pub fn map(
        description: &VhostUserInflight,
        file: File,
        share: &Arc<Share>,
    ) -> Result<InflightMemory, VhostError> {
        let refuse = |reason: String| VhostError::Inflight { reason };
        let bytes = stride(description.queue_size) * usize::from(description.num_queues);
        if description.mmap_size < bytes as u64 {
            return Err(refuse(format!(
                "{} bytes, where {} queues of {} need {bytes}",
                description.mmap_size, description.num_queues, description.queue_size
            )));
        }
        check_file(&file, description.mmap_offset, bytes as u64).map_err(refuse)?;
        let mapping = MmapRegion::from_file(FileOffset::new(file, description.mmap_offset), bytes)
            .map_err(|e| refuse(e.to_string()))?;
        let guard = Guard::new(mapping.as_ptr(), mapping.size(), share).map_err(refuse)?;
        Ok(InflightMemory {
            _guard: guard,
            mapping,
            queues: description.num_queues,
            queue_size: description.queue_size,
        })
    }
}

/// The requests in flight of one queue. Only the queue's thread uses it.
#[derive(Debug)]
pub struct Inflight {
    memory: Arc<InflightMemory>,
    /// The offset of the queue's region.
    start: usize,
    entries: u16,
    /// The number of the next request.
    counter: u64,
}

impl Inflight {
    /// The region of queue `queue` with `size` descriptors.
    ///
    /// # Errors
    /// The memory is too small, or has an unknown layout.
    pub fn open(
        memory: &Arc<InflightMemory>,
        queue: u16,
        size: u16,
    ) -> Result<Inflight, VhostError> {
        let refuse = |reason: String| Err(VhostError::Inflight { reason });
        if queue >= memory.queues || size > memory.queue_size {
            return refuse(format!(
                "there is no room for queue {queue} of {size} in {} queues of {}",
                memory.queues, memory.queue_size
            ));
        }
        let inflight = Inflight {
            memory: Arc::clone(memory),
            start: usize::from(queue) * stride(memory.queue_size),
            entries: memory.queue_size,
            counter: 0,
        };
        match inflight.load::<u16>(region::VERSION) {
            0 => inflight.store(region::VERSION, VERSION),
            VERSION => {}
            other => {
                return refuse(format!(
                    "its layout has version {other}, known is {VERSION}"
                ));
            }
        }
        inflight.store(region::ENTRIES, memory.queue_size);
        Ok(inflight)
    }

    /// The requests that were received and not answered when the region was last used, in the order
    /// in which they were received. `used_idx` is the current index of the used ring. Indexes
    /// beyond `size` are ignored.
    pub fn recover(&mut self, used_idx: u16, size: u16) -> Vec<u16> {
        self.finish_batch(used_idx);
        let mut left: Vec<(u64, u16)> = Vec::new();
        for head in 0..self.entries.min(size) {
            if self.load::<u8>(self.entry(head) + entry::INFLIGHT) == 1 {
                left.push((self.load(self.entry(head) + entry::COUNTER), head));
            }
        }
        left.sort_unstable();
        self.counter = left.last().map_or(0, |(last, _)| last.wrapping_add(1));
        left.into_iter().map(|(_, head)| head).collect()
    }

    /// Removes the requests that were put into the used ring before a crash, but not yet removed.
    fn finish_batch(&mut self, used_idx: u16) {
        let before: u16 = self.load(region::USED_IDX);
        let batch = used_idx.wrapping_sub(before).min(self.entries);
        let mut head: u16 = self.load(region::LAST_BATCH_HEAD);
        for _ in 0..batch {
            if head >= self.entries {
                break;
            }
            self.store(self.entry(head) + entry::INFLIGHT, 0_u8);
            head = self.load(self.entry(head) + entry::NEXT);
        }
        self.store(region::USED_IDX, used_idx);
    }

    /// Adds a request of the available ring.
    pub fn add(&mut self, head: u16) {
        let entry = self.entry(head);
        self.store(entry + entry::COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.store(entry + entry::INFLIGHT, 1_u8);
    }

    /// Marks a request that is about to be put into the used ring, alone.
    pub fn set_last_batch(&mut self, head: u16) {
        let before: u16 = self.load(region::LAST_BATCH_HEAD);
        self.store(self.entry(head) + entry::NEXT, before);
        self.store(region::LAST_BATCH_HEAD, head);
    }

    /// Removes it; the ring's index is now `used_idx`.
    pub fn remove(&mut self, head: u16, used_idx: u16) {
        self.store(self.entry(head) + entry::INFLIGHT, 0_u8);
        self.store(region::USED_IDX, used_idx);
    }

    fn entry(&self, head: u16) -> usize {
        region::HEADER_BYTES + entry::BYTES * usize::from(head)
    }

    fn load<T: AtomicAccess>(&self, offset: usize) -> T {
        let slice = self.memory.mapping.as_volatile_slice();
        let loaded = slice.load(self.start + offset, Relaxed);
        loaded.expect("a head is below the size of the queue, which was held against the region")
    }

    fn store<T: AtomicAccess>(&self, offset: usize, value: T) {
        let slice = self.memory.mapping.as_volatile_slice();
        let stored = slice.store(value, self.start + offset, Release);
        stored.expect("a head is below the size of the queue, which was held against the region");
    }
}
