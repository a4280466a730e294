//! `weir tapdisk insert`: puts a tap under the disk of a VM that runs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weir_tap::qmp::Address;
use weir_tapdisk::insertion::RECONNECT_DELAY_S;

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::Stop;
use weir_tapdisk::insertion::{self, DiskSelector, Inserted, InsertionOutcome};

/// Put a tap under the disk of a VM that runs
///
/// The VM goes on meanwhile: QEMU lets the requests under way finish, and sends the next ones
/// through a `weir tapdisk` of its own. That outlives this command, and ends with the VM. It takes
/// a QEMU of 6.1 or later, with a QMP monitor or under libvirt, and a raw disk on a file or device
/// of this host.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir tapdisk insert --vm web --disk vda\n  \
    weir tapdisk insert --vm web --disk vda --json\n  \
    weir query --from tapdisk:/run/weir-tapdisk/web.vda/nbd \"select op, latency from IO\"\n  \
    weir tapdisk remove --vm web --disk vda\n\n\
    If a step fails, or it is interrupted, the disk is as it was. Should the tap be killed, the VM's requests wait\n\
    for it for an hour: insert again brings it back, remove takes it out. Take it out before you migrate the VM, resize\n\
    the disk, take snapshots or unplug it."
)]
pub struct InsertArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// Whether the guest's discards reach the image, where QEMU does not tell
    #[arg(long, value_name = "WHAT")]
    discard: Option<Discard>,
    /// Say on standard output what was done, as JSON
    #[arg(long)]
    json: bool,
}

/// The disk that is meant.
#[derive(Args, Debug)]
pub struct WhichArgs {
    /// The VM's name
    #[arg(long, value_name = "NAME")]
    vm: String,
    /// The disk, as the VM calls it (vda, /dev/vda), or its device or node in QEMU
    #[arg(long, value_name = "NAME")]
    disk: String,
    /// Ask QEMU at this QMP socket [default: the one that it was started with, or libvirt]
    #[arg(long, value_name = "SOCKET")]
    qmp: Option<PathBuf>,
}

impl WhichArgs {
    /// What is meant.
    pub fn which(&self) -> DiskSelector<'_> {
        DiskSelector {
            vm: &self.vm,
            disk: &self.disk,
            monitor: self.qmp.clone().map(Address::Socket),
        }
    }
}

/// What becomes of discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Discard {
    /// They give space back
    Unmap,
    /// They do nothing
    Ignore,
}

pub fn run(args: &InsertArgs) -> Result<Ending, Failure> {
    let stop = Stop::on_signals()?;
    let discard = args.discard.map(|discard| discard == Discard::Unmap);
    let done = insertion::insert(&args.which.which(), discard, &|| stop.signal().is_some())
        .map_err(super::tapdisk::failure);
    let inserted = match (done, stop.signal()) {
        (Ok(inserted), _) => inserted,
        (Err(failure), Some(number)) => {
            failure.report(false);
            return Ok(Ending::Signal(number));
        }
        (Err(failure), None) => return Err(failure),
    };
    tell(&inserted);
    if args.json {
        let text = serde_json::to_string(&inserted).expect("it has texts and numbers");
        output::print(&(text + "\n"))?;
    }
    Ok(Ending::Done)
}

fn tell(inserted: &Inserted) {
    let Inserted {
        vm,
        vdisk,
        socket,
        log,
        ..
    } = inserted;
    let pid = inserted.pid.unwrap_or_default();
    let how = match inserted.how {
        InsertionOutcome::Inserted => "a tap is under it now".to_owned(),
        InsertionOutcome::Restarted => {
            "its tap had ended, and runs again; QEMU connects within seconds".to_owned()
        }
        InsertionOutcome::AlreadyInserted => "a tap is under it already".to_owned(),
    };
    let minutes = RECONNECT_DELAY_S / 60;
    output::say(format_args!(
        "weir: {vdisk} of VM {vm}: {how} (process {pid}, log {})",
        log.display()
    ));
    for remark in &inserted.remarks {
        output::say(format_args!("weir: {vdisk} of VM {vm}: {remark}"));
    }
    output::say(format_args!(
        "  ask it:       weir query --from tapdisk:{} \"select op, count(*), avg(latency) from IO [range 1 s slide 1 s] \
         group by op\"\n  take it out:  weir tapdisk remove --vm {vm} --disk {vdisk}\n  if it is killed, the VM's \
         requests wait {minutes} minutes for `weir tapdisk insert --vm {vm} --disk {vdisk}`",
        socket.display()
    ));
}
