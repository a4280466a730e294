//! The order of the events of a disk, or of a subject of histograms, as defined in `order.h`.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of processors that an order can represent: two histories each (`PAST_BITS`).
pub const PROCESSORS_MAX: u32 = 1 << 11;

/// Increment of one request in flight in a `struct order` (`PAST_BITS`).
const ONE_IN_FLIGHT: u64 = 1 << 12;

/// The bits of the number in flight (`FLIGHT_BITS`).
const IN_FLIGHT: u64 = 0xffff << 12;

/// Whether the programs can determine the orders of all disks of this machine, if they have this
/// number of rows for them.
pub fn is_possible(rows: u32) -> bool {
    let processors = libbpf_rs::num_possible_cpus();
    // The first row is for unknown disks.
    let disks = fs::read_dir("/sys/block").map_or(0, Iterator::count);
    processors.is_ok_and(|number| number <= PROCESSORS_MAX as usize) && disks < rows as usize
}

/// Removes a request whose entry was removed from those in flight; `word` is that of its order.
pub fn forget(word: &AtomicU64) {
    let less = |word: u64| (word & IN_FLIGHT != 0).then(|| word - ONE_IN_FLIGHT);
    // Without any in flight there is nothing to remove.
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
}
