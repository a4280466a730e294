//! `weir`: ask a host's block I/O anything, in CQL.
//!
//! This crate holds the command line ([`command`], one subcommand a file) and the loop that moves
//! rows from taps through the engine to sinks ([`run_loop`]).

mod agent;
mod certificates;
mod command;
mod config;
mod device_names;
mod disk_totals;
mod exporter;
mod failure;
mod fleet;
mod hist;
mod insertion;
mod iostat;
mod left_out;
mod lock;
mod measured;
mod monitor;
mod names;
mod output;
mod plans;
mod private;
mod quantity;
mod question;
mod random;
mod run_loop;
mod script_sources;
mod simulate;
mod source;
mod tapdisk;
mod top;
mod traces;
mod workload;

use std::process::ExitCode;

use clap::Parser;

use command::Cli;
use failure::Failure;
use weir_tap::elevation;

fn main() -> ExitCode {
    let begun = elevation::begin().map_err(Failure::from);
    let cli = Cli::parse();
    let verbose = cli.verbose();
    match begun.and_then(|()| command::run(cli)) {
        Ok(ending) => ending.code(),
        Err(failure) => failure.report(verbose),
    }
}
