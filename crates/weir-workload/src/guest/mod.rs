//! The requests of a guest, tied to the requests that its virtual disk received.
//!
//! virtio carries no number of a request, so that the two sides have nothing in common but the
//! operation, the sectors and their order in time. [`Matcher`] ties requests of equal operation and
//! sectors if the times of both sides permit exactly one assignment. [`OffsetClock`] bounds the
//! offset of the two clocks by the pairs themselves: a request is received after it was issued, and
//! it has finished in the guest after it has finished in the virtual disk. [`locate()`] finds the
//! offset of clocks of which nothing is known.

mod assignment;
mod clock;
mod locate;
mod matcher;
#[cfg(test)]
mod simulated;

use weir_model::Nanos;

pub use clock::{OffsetBounds, OffsetClock};
pub use locate::locate;
pub use matcher::{MatchOptions, MatchOutcome, Matcher, UnmatchedCause};

/// What a request does, as both sides see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SightingKey {
    /// The letter of the operation: `r`, `w`, `f`, `d`, `z`.
    pub op: char,
    /// The first sector on the disk; 0 for a flush.
    pub sector: i64,
    /// The number of sectors; 0 for a flush.
    pub sectors: i64,
}

/// A request as one side sees it, by its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// What it does.
    pub key: SightingKey,
    /// When the guest issued it, or the virtual disk received it.
    pub begin: Nanos,
    /// When it had finished.
    pub end: Nanos,
}

impl Sighting {
    /// The offsets, virtual disk minus guest, with which `vdisk` can be this request of the guest;
    /// `None` if the virtual disk needed more time than the guest waited.
    pub fn offsets(&self, vdisk: &Sighting) -> Option<OffsetBounds> {
        let low = vdisk.end.saturating_sub(self.end);
        let high = vdisk.begin.saturating_sub(self.begin);
        (low <= high).then_some(OffsetBounds { low, high })
    }
}
