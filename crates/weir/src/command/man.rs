//! `weir man DIR`: manual pages, one a command, from the same descriptions as the help.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use crate::command::Cli;
use weir_runtime::failure::{Ending, Failure};

/// Write manual pages, one for each command: `weir man /usr/local/share/man/man1`
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Where to; the directory is made where it is absent
    directory: PathBuf,
}

pub fn run(args: &ManArgs) -> Result<Ending, Failure> {
    let name = args.directory.display();
    let failed = |e: std::io::Error| Failure::world(format!("{name}: {e}"));
    std::fs::create_dir_all(&args.directory).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.directory).map_err(failed)?;
    Ok(Ending::Done)
}
