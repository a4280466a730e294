//! [`run_queue`]: runs a queue without a guest, a front end or a thread: executes the requests in
//! an image of memory, and returns the result. For tests and fuzzing.

use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, MmapRegion};

use super::VhostError;
use super::guard::Share;
use super::memory::{GuestMemory, GuestRegion};
use super::queue::{BlockQueue, Broken};
use super::ring::{Layout, Ring};
use crate::disk::ServedDisk;
use crate::io_queue::{IoQueue, IoQueueOptions};

/// Maximum number of rounds for a guest that never ends.
const ROUNDS_MAX: usize = 64;

/// The location of a queue, and its driver's position.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfflineQueue {
    /// Number of descriptors.
    pub size: u16,
    /// The guest's addresses of the descriptor table, the available and the used ring.
    pub rings: [u64; 3],
    /// The next index of the available ring.
    pub base: u16,
    /// Event indices were negotiated.
    pub event_idx: bool,
    /// Indirect tables were negotiated.
    pub indirect: bool,
}

/// The result.
#[derive(Debug)]
pub struct TrialEnd {
    /// The memory afterwards.
    pub memory: Vec<u8>,
    /// Why the queue broke, if it did.
    pub broken: Option<Broken>,
}

/// Executes the requests of the queue in this memory. The memory begins at the guest's address 0,
/// in one region up to its middle and in another from there on.
///
/// # Errors
/// The rings are outside the memory, or the disk has no I/O queue.
pub fn run_queue(
    disk: &Arc<ServedDisk>,
    memory: &[u8],
    queue: OfflineQueue,
) -> Result<TrialEnd, VhostError> {
    let table = |reason: String| VhostError::Table { reason };
    let middle = memory.len() / 2;
    let mut pieces = vec![(0, middle), (middle, memory.len() - middle)];
    pieces.retain(|(_, bytes)| *bytes > 0);
    let share = Share::new(pieces.len());
    let piece = |(start, bytes): &(usize, usize)| {
        let mapping = MmapRegion::new(*bytes).map_err(|e| e.to_string())?;
        GuestRegion::new(mapping, GuestAddress(*start as u64), &share)
    };
    let pieces: Result<Vec<_>, _> = pieces.iter().map(piece).collect();
    let mapped = GuestMemory::from_regions(pieces.map_err(table)?);
    let mapped = mapped.map_err(|e| table(e.to_string()))?;
    let start = GuestAddress(0);
    mapped
        .write_slice(memory, start)
        .map_err(|e| table(e.to_string()))?;
    let mapped = Arc::new(mapped);
    let layout = Layout {
        size: queue.size,
        table: GuestAddress(queue.rings[0]),
        available: GuestAddress(queue.rings[1]),
        used: GuestAddress(queue.rings[2]),
        event_idx: queue.event_idx,
        indirect: queue.indirect,
    };
    let index = 0;
    let ring = Ring::new(&mapped, &layout, queue.base, None)
        .map_err(|error| VhostError::Ring { index, error })?;
    let depth = u32::from(queue.size);
    let io_queue = IoQueue::new(
        disk,
        IoQueueOptions {
            queue: index,
            depth,
        },
    )?;
    let mut queue = BlockQueue::new(disk, io_queue, ring, &mapped, false);
    let broken = run(&mut queue).err();
    // Requests that were in flight when the queue broke.
    while queue.io_queue().in_flight() > 0 {
        if let Err(Broken::Disk(error)) = queue.round(0) {
            return Err(error.into());
        }
    }
    let mut after = vec![0; memory.len()];
    let read = mapped.read_slice(&mut after, start);
    read.map_err(|e| table(e.to_string()))?;
    Ok(TrialEnd {
        memory: after,
        broken,
    })
}

fn run(queue: &mut BlockQueue) -> Result<(), Broken> {
    for _ in 0..ROUNDS_MAX {
        queue.disarm()?;
        let waiting = queue.waiting()?;
        queue.round(waiting)?;
        if queue.io_queue().in_flight() == 0 && !queue.arm()? {
            return Ok(());
        }
    }
    Ok(())
}
