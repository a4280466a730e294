//! `weir tapdisk remove`: removes a tap from the disk path of a running VM.

use clap::Args;

use super::tapdisk_insert::WhichArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::Stop;
use weir_tapdisk::insertion::{self, RemovalOutcome};

/// Remove a tap from the disk path of a running VM
///
/// Restores the disk path to its state before `weir tapdisk insert`, also if the tap or that
/// command was killed. A disk without a tap is reported, and is not an error.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir tapdisk remove --vm web --disk vda")]
pub struct RemoveArgs {
    #[command(flatten)]
    which: WhichArgs,
}

pub fn run(args: &RemoveArgs) -> Result<Ending, Failure> {
    let which = args.which.which();
    // A removal that has begun is completed; a second signal ends it nevertheless.
    let stop = Stop::on_signals()?;
    let removed =
        insertion::remove(&which, &|| stop.signal().is_some()).map_err(super::tapdisk::failure)?;
    let words = match removed {
        RemovalOutcome::Removed => "tap removed",
        RemovalOutcome::EndedWithVm => "the VM and its tap have ended",
        RemovalOutcome::NotInserted => "no tap is inserted",
    };
    output::notice(format_args!(
        "weir: {} of VM {}: {words}",
        which.disk, which.vm
    ));
    Ok(stop.signal().map_or(Ending::Done, Ending::Signal))
}
