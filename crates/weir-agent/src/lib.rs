//! The agent: runs fragments of queries over the I/O of one host, for a monitor.
//!
//! [`AgentCore`] handles rows and time without threads, clocks or network: it receives the
//! monitor's orders and the rows of sources, and emits messages for the monitor. Its caller (`weir
//! agent`, a simulation, a test) advances the time.

mod actions;
mod clock;
pub mod config;
mod core;
mod demands;
mod folds;
pub mod guest;
mod handover;
mod live;
mod own_stream;
mod paced;
mod row_conversion;
mod service;
mod shedding;
mod tap;

pub use self::clock::AgentClock;
pub use self::core::AgentCore;
pub use self::live::{Agent, AgentOptions};
pub use self::paced::ReplayClock;
pub use self::row_conversion::RowConversion;
pub use self::shedding::Budget;
pub use self::tap::SourceConfig;
