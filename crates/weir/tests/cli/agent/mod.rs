//! `weir agent` as a process, against a monitor of the test's own.

mod live;
pub mod monitor;
mod replay;
