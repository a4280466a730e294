//! Trials of a disk's queue settings: which scheduler, queue depth, read-ahead and write-back
//! throttling serve a stated objective.
//!
//! [`queue`] reads, writes and restores the settings of a queue, with a journal for restarts.
//! [`statistics`] decides from the values of blocks and is pure.

pub mod queue;
pub mod statistics;
