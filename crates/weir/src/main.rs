//! `weir`: queries in CQL over the block I/O of a host, a fleet or a recording.
//!
//! This crate is the command line: options that commands share ([`args`]) and one subcommand a file
//! ([`command`]).

mod args;
mod command;
mod version;

use std::process::ExitCode;

use clap::Parser;

use command::Cli;
use weir_runtime::failure::Failure;
use weir_tap::elevation;

fn main() -> ExitCode {
    let elevated = elevation::begin().map_err(Failure::from);
    let cli = Cli::parse();
    let verbose = cli.verbose();
    match elevated.and_then(|()| command::run(cli)) {
        Ok(ending) => ending.code(),
        Err(failure) => failure.report(verbose),
    }
}
