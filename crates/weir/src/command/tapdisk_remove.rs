//! `weir tapdisk remove`: takes a tap out from under the disk of a VM that runs.

use clap::Args;

use super::tapdisk_insert::WhichArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::Stop;
use weir_tapdisk::insertion::{self, RemovalOutcome};

/// Take a tap out from under the disk of a VM that runs
///
/// The disk is as it was before `weir tapdisk insert`, whatever became of the tap or of the command
/// that put it there. Where there is none, that is said and is no failure.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir tapdisk remove --vm web --disk vda")]
pub struct RemoveArgs {
    #[command(flatten)]
    which: WhichArgs,
}

pub fn run(args: &RemoveArgs) -> Result<Ending, Failure> {
    let which = args.which.which();
    // A removal that has begun goes on to its end; a second signal ends it all the same.
    let stop = Stop::on_signals()?;
    let removed =
        insertion::remove(&which, &|| stop.signal().is_some()).map_err(super::tapdisk::failure)?;
    let words = match removed {
        RemovalOutcome::Removed => "the tap is out, and the disk is as it was",
        RemovalOutcome::EndedWithVm => "the VM has ended, and so has its tap",
        RemovalOutcome::NotInserted => "no tap is under it",
    };
    output::say(format_args!(
        "weir: {} of VM {}: {words}",
        which.disk, which.vm
    ));
    Ok(stop.signal().map_or(Ending::Done, Ending::Signal))
}
