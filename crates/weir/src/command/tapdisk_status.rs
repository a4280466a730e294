//! `weir tapdisk status PATH`: what a running tapdisk serves, has done, and tells to whom.

use std::path::PathBuf;

use clap::Args;
use weir_tap::tapdisk::words::{Answer, Ask};
use weir_tap::tapdisk::{Client, ClientError};

use crate::tapdisk::status::page;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::wall_clock;

/// Say what a running tapdisk serves, has done, and tells to whom
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir tapdisk status /run/web.sock\n  weir tapdisk status --json /run/web.sock.tap"
)]
pub struct StatusArgs {
    /// A disk's socket, or the tap's own
    path: PathBuf,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &StatusArgs) -> Result<Ending, Failure> {
    let ask = || match Client::connect(&args.path)?.ask(Ask::Status)? {
        Answer::Status(status) => Ok(status),
        other => Err(ClientError::Garbled(format!("{other:?}"))),
    };
    let status = ask().map_err(|error| error.at(&args.path))?;
    let text = match args.json {
        true => {
            serde_json::to_string(&status)
                .map_err(anyhow::Error::from)
                .map_err(Failure::World)?
                + "\n"
        }
        false => page(&status, wall_clock()),
    };
    output::print(&text)?;
    Ok(Ending::Done)
}
