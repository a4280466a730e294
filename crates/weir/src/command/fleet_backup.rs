//! `weir fleet backup` and `weir fleet restore`: the standing queries, stored views and placed
//! alerts of a monitor as a file.

use std::fs;
use std::path::PathBuf;

use clap::Args;

use crate::args::FleetArgs;
use weir_monitor::client::backup::Backup;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;

/// What `weir fleet backup` saves, and where.
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// Write to this file instead of standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    fleet: FleetArgs,
}

/// What `weir fleet restore` places.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// File that `weir fleet backup` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Check the file and the names, and change nothing
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    fleet: FleetArgs,
}

pub fn backup(args: &BackupArgs) -> Result<Ending, Failure> {
    let text = Backup::of_monitor(&mut args.fleet.connect()?)?.text();
    match &args.output {
        None => output::print(&text)?,
        Some(path) => fs::write(path, text)
            .map_err(|error| Failure::world(format_args!("{}: {error}", path.display())))?,
    }
    Ok(Ending::Done)
}

pub fn restore(args: &RestoreArgs) -> Result<Ending, Failure> {
    let backup = Backup::read(&args.file)?;
    let mut client = args.fleet.connect()?;
    let (placed, rejected) = backup.restore(&mut client, args.check)?;
    if args.check {
        output::notice(format_args!("weir: {} is valid", args.file.display()));
    } else {
        output::notice(format_args!("weir: {placed} restored, {rejected} failed"));
    }
    Ok(match rejected {
        0 => Ending::Done,
        _ => Ending::Failed,
    })
}
