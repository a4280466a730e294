//! Trials of a disk's queue settings: which scheduler, queue depth, read-ahead and write-back
//! throttling serve a stated objective.
//!
//! ```text
//! observe ─ candidates ─ Trial: rounds of blocks ─ statistics ─ report
//!                          │ sets and restores
//!                        queue: settings and journal
//! ```
//!
//! [`run`] is the whole of `weir tune`. [`queue`] reads, writes and restores the settings of a
//! queue, with a journal for restarts. [`measure`] observes the disk by a process `weir query`.
//! [`statistics`] decides from the values of blocks and is pure.

pub mod candidate;
pub mod device;
pub mod measure;
pub mod metric;
pub mod observe;
pub mod queue;
pub mod report;
pub mod restore;
pub mod run;
pub mod statistics;
pub mod trial;
