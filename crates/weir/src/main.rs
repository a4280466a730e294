//! `weir`: ask a host's block I/O anything, in CQL.
//!
//! This crate holds the command line ([`command`], one subcommand a file) and the loop that moves
//! rows from taps through the engine to sinks ([`run_loop`]).

mod agent;
mod certificates;
mod command;
mod config;
mod disk_totals;
mod exporter;
mod failure;
mod fleet;
mod hist;
mod insertion;
mod iostat;
mod lock;
mod measured;
mod monitor;
mod output;
mod plans;
mod quantity;
mod question;
mod random;
mod run_loop;
mod script_sources;
mod simulate;
mod source;
mod tapdisk;
mod top;
mod workload;

use std::process::ExitCode;

use clap::Parser;

use command::Cli;

fn main() -> ExitCode {
    match command::run(Cli::parse()) {
        Ok(ending) => ending.code(),
        Err(failure) => failure.report(),
    }
}
