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
//! [`statistics`] decides from the values of blocks and is pure. [`replay`] issues the requests of
//! a recording on a scratch disk, as the load of a trial or alone. [`guest`] changes the settings
//! of a guest's disk, which the guest permits.

pub mod candidate;
pub mod clock;
pub mod device;
pub mod guest;
pub mod html;
pub mod lease;
pub mod measure;
pub mod metric;
pub mod observe;
pub mod price;
pub mod queue;
pub mod replay;
pub mod report;
pub mod restore;
pub mod run;
pub mod statistics;
pub mod trial;
