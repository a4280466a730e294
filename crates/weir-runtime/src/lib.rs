//! The common part of all commands that run queries: sources opened once, the loop that moves rows
//! from sources through the engine to sinks, and the exit of commands.

pub mod boot;
pub mod config;
pub mod device_names;
pub mod failure;
pub mod http;
pub mod inspection;
pub mod leader_file;
pub mod lock;
pub mod log;
pub mod logged_reasons;
pub mod names;
pub mod output;
pub mod plans;
pub mod private;
pub mod quantity;
pub mod question;
pub mod recent;
pub mod run_loop;
pub mod script_sources;
pub mod service;
pub mod shipped;
pub mod source;
pub mod tally_file;
pub mod unobserved;
pub mod views;
