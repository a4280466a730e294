//! `weir`: ask a host's block I/O anything, in CQL.
//!
//! This crate holds the command line ([`command`], one subcommand a file) and the loop that moves
//! rows from taps through the engine to sinks ([`run_loop`]).

mod args;
mod certificates;
mod command;
mod simulate;
mod tapdisk;

use std::process::ExitCode;

use clap::Parser;

use command::Cli;
use weir_runtime::failure::Failure;
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
