//! What `weir hist` shows, and who counts it.
//!
//! [`Counted`](counted::Counted) is what everything here speaks of: histograms by subject, over a span of
//! time. It comes from the kernel, from a collector that works in the background, from a recording whose events
//! are counted here, or from a file in which it was kept.

/// The hidden command that counts in the background ([`background::collect`]).
pub const COLLECTOR: &str = "hist-collector";

pub mod background;
pub mod choice;
pub mod collector;
pub mod count;
pub mod counted;
pub mod disks;
pub mod foreground;
pub mod gather;
pub mod gauge;
pub mod kernel;
pub mod maps;
pub mod over_time;
pub mod pairs;
pub mod saved;
mod served;
pub mod show;
