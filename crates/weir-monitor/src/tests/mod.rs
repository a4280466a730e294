//! The monitor with agents that are played: what it is told is written down, and so is what comes
//! out.

mod completeness;
mod faults;
mod fleet;
mod host;
mod linear;
mod losses;
mod own_stream;
mod rates;
mod relations;
mod restart;
mod room;
mod time;
mod watching;
