//! The monitor with agents that are played: what it is told is written down, and so is what comes
//! out.

mod fleet;
mod host;
mod rates;
mod restart;
mod time;
