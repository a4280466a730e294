//! The agent: fragments of queries over this host's I/O, on behalf of a monitor.
//!
//! [`AgentCore`] is what an agent does with rows and time, without threads, clocks or network: the
//! monitor's orders and the taps' rows go in, what is to be said to the monitor comes out. Whatever
//! drives it ([`crate::command`]'s `weir agent`, a simulation, a test) owns time.

mod clock;
pub mod config;
mod core;
mod demands;
mod folds;
mod handover;
mod live;
mod outlet;
mod own;
mod paced;
mod service;
mod shedding;
mod tally_file;
mod tap;

pub use self::clock::{AgentClock, Drill};
pub use self::core::AgentCore;
pub use self::live::{Agent, Options};
pub use self::outlet::Outlet;
pub use self::paced::Replay;
pub use self::shedding::Budget;
pub use self::tally_file::TallyFile;
pub use self::tap::Ground;
