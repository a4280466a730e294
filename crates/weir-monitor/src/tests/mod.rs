//! The monitor with simulated agents: tests specify its input and compare its output.

mod completeness;
mod contents;
mod faults;
mod files;
pub mod fleet;
mod guests;
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
