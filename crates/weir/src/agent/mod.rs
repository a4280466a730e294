//! The agent: fragments of queries over this host's I/O, on behalf of a monitor.
//!
//! [`AgentCore`] is what an agent does with rows and time, without threads, clocks or network: the
//! monitor's orders and the taps' rows go in, what is to be said to the monitor comes out. Whatever
//! drives it ([`crate::command`]'s `weir agent`, a simulation, a test) owns time.

mod core;
mod handover;
mod outlet;

pub use self::core::AgentCore;
