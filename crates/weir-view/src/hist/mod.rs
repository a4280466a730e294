//! The histograms of `weir hist`, and their sources.
//!
//! [`CountedHistograms`](counted::CountedHistograms) is the common type: histograms by subject,
//! over an interval. Its source is the kernel, a background collector, a recording whose events are
//! counted here, or a saved file.

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
