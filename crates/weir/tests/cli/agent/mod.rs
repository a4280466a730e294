//! `weir agent` as a process, against a monitor of the test's own.

mod live;
mod monitor;
mod replay;
