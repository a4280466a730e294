//! What `weir hist` shows, and who counts it.
//!
//! [`Counted`](counted::Counted) is what everything here speaks of: histograms by subject, over a span of
//! time. It comes from the kernel, from a collector that works in the background, from a recording whose events
//! are counted here, or from a file in which it was kept.

pub mod choice;
pub mod collector;
pub mod counted;
pub mod disks;
pub mod gauge;
pub mod saved;
