//! The order of the events of a disk, or of a subject of histograms, as defined in `order.h`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of processors that an order can represent: two histories each (`PAST_BITS`).
pub const PROCESSORS_MAX: u32 = 1 << 11;

/// Increment of one request in flight in a `struct order` (`PAST_BITS`).
const ONE_IN_FLIGHT: u64 = 1 << 12;

/// Whether the programs can determine orders on this machine.
pub fn is_possible() -> bool {
    libbpf_rs::num_possible_cpus().is_ok_and(|processors| processors <= PROCESSORS_MAX as usize)
}

/// Removes a request whose entry was removed from those in flight; `word` is that of its order.
pub fn forget(word: &AtomicU64) {
    word.fetch_sub(ONE_IN_FLIGHT, Ordering::AcqRel);
}
