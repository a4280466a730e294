//! `weir agent` as a process, against a monitor that the test implements.

mod live;
pub mod monitor;
mod replay;
mod site;
