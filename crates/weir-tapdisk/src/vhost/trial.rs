//! [`carry_out`]: a queue without a guest, a front end or a thread: what is in an image of memory is
//! carried out, and what became of it is seen. For tests, and for fuzzing.

use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, MmapRegion};

use super::VhostError;
use super::guard::Share;
use super::memory::{GuestMemory, GuestRegion};
use super::queue::{BlockQueue, Broken};
use super::ring::{Layout, Ring};
use crate::disk::Disk;
use crate::lane::{Lane, LaneOptions};

/// Rounds before a guest that never ends is left.
const ROUNDS_MAX: usize = 64;

/// Where a queue is, and where its driver is.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrialQueue {
    /// Number of descriptors.
    pub size: u16,
    /// The guest's addresses of the descriptor table, the available and the used ring.
    pub rings: [u64; 3],
    /// The next of the available ring.
    pub base: u16,
    /// Event indices were negotiated.
    pub event_idx: bool,
    /// Indirect tables were negotiated.
    pub indirect: bool,
}

/// What became of it.
#[derive(Debug)]
pub struct TrialEnd {
    /// The memory, as it is then.
    pub memory: Vec<u8>,
    /// Why the queue broke, if it did.
    pub broken: Option<Broken>,
}

/// Carries out what the queue in this memory asks of the disk. The memory begins at the guest's
/// address 0, in one piece up to its middle and in another from there on.
///
/// # Errors
/// The rings are not in the memory, or the disk has no lane.
pub fn carry_out(
    disk: &Arc<Disk>,
    memory: &[u8],
    queue: TrialQueue,
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
    let lane = Lane::new(
        disk,
        LaneOptions {
            queue: index,
            depth,
        },
    )?;
    let mut queue = BlockQueue::new(disk, lane, ring, &mapped, false);
    let broken = run(&mut queue).err();
    // What was on its way when the queue broke.
    while queue.lane().in_flight() > 0 {
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
        if queue.lane().in_flight() == 0 && !queue.arm()? {
            return Ok(());
        }
    }
    Ok(())
}
