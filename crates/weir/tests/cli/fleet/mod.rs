//! A fleet of real processes on this host: `weir monitor`, `weir agent`s that replay recordings,
//! and clients.

mod access;
mod actions;
mod alerts;
mod answers;
mod console;
mod correlate;
mod flink_turn;
mod forward;
mod forward_agents;
mod hosts;
mod measured;
mod on_flink;
mod operations;
mod probes;
pub mod processes;
mod queries;
mod restart;
mod scripts;
mod sites;
mod standby;
mod views;
mod watch;
