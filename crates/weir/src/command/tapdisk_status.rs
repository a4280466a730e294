//! `weir tapdisk status PATH`: the disks, counters and consumers of a running tapdisk.

use std::path::PathBuf;

use clap::Args;
use weir_tap::tapdisk::words::{Answer, Ask};
use weir_tap::tapdisk::{ClientError, TapdiskClient};

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::wall_clock;
use weir_view::tapdisk_status::page;

/// Print the disks, counters and consumers of a running tapdisk
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir tapdisk status /run/web.sock\n  weir tapdisk status --json /run/web.sock.tap"
)]
pub struct StatusArgs {
    /// Socket of a disk or of the tapdisk
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
}

pub fn run(args: &StatusArgs) -> Result<Ending, Failure> {
    let ask = || match TapdiskClient::connect(&args.path)?.ask(Ask::Status)? {
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
