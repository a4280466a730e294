//! Replays the requests of a recording on a scratch device, and measures how faithful that was.
//!
//! ```text
//! recording ─ rows ─ plan ─ player ─ io_uring ─ device
//!                      └──── fidelity ── rows ── weir's tap
//! ```
//!
//! [`rows`] reads the requests of a recording, and those that the tap sees during the replay, by a
//! process `weir query` each. [`plan`] places them on the device and in time. [`scratch`] claims
//! the device, which nothing else may use. [`player`] issues the requests, [`fidelity`] compares
//! what was recorded with what arrived at the device. [`run`] is the whole.

pub mod fidelity;
pub mod plan;
pub mod player;
pub mod report;
pub mod rows;
pub mod run;
pub mod scratch;
pub mod signature;
