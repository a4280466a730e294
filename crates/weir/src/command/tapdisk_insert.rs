//! `weir tapdisk insert`: inserts a tap into the disk path of a running VM.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weir_tap::qmp::QmpAddress;
use weir_tapdisk::insertion::RECONNECT_DELAY_S;

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::Stop;
use weir_tapdisk::insertion::{self, DiskSelector, Inserted, InsertionOutcome};

/// Insert a tap into the disk path of a running VM
///
/// The VM continues to run: QEMU completes the requests in flight, and sends further requests
/// through a `weir tapdisk` process, which runs until the VM ends. Requires QEMU 6.1 or later with
/// a QMP monitor or under libvirt, and a raw disk in a file or on a device of this host.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir tapdisk insert --vm web --disk vda\n  \
    weir tapdisk insert --vm web --disk vda --json\n  \
    weir query --from tapdisk:/run/weir-tapdisk/web.vda/nbd \"select op, latency from IO\"\n  \
    weir tapdisk remove --vm web --disk vda\n\n\
    If a step fails or the command is interrupted, the disk path is unchanged. If the tap is killed, \
    the VM's requests wait for an hour: insert restarts the tap, remove removes it. Remove the tap \
    before you migrate the VM, resize or unplug the disk, or create snapshots."
)]
pub struct InsertArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// Handling of the guest's discards [default: as QEMU reports it]
    #[arg(long, value_name = "MODE")]
    discard: Option<Discard>,
    /// Print the result as JSON
    #[arg(short = 'j', long)]
    json: bool,
}

/// The disk of the operation.
#[derive(Args, Debug)]
pub struct WhichArgs {
    /// Name of the VM
    #[arg(long, value_name = "NAME")]
    vm: String,
    /// The disk, by its name in the VM (vda, /dev/vda), or by its device or node in QEMU
    #[arg(long, value_name = "NAME")]
    disk: String,
    /// QMP socket of QEMU [default: that of QEMU's command line, or libvirt]
    #[arg(long, value_name = "SOCKET")]
    qmp: Option<PathBuf>,
}

impl WhichArgs {
    /// The disk that the arguments select.
    pub fn which(&self) -> DiskSelector<'_> {
        DiskSelector {
            vm: &self.vm,
            disk: &self.disk,
            monitor: self.qmp.clone().map(QmpAddress::Socket),
        }
    }
}

/// The handling of discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Discard {
    /// Discards free space in the image
    Unmap,
    /// Discards are ignored
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
    report(&inserted);
    if args.json {
        let text = serde_json::to_string(&inserted).expect("it has texts and numbers");
        output::print(&(text + "\n"))?;
    }
    Ok(Ending::Done)
}

fn report(inserted: &Inserted) {
    let Inserted {
        vm,
        vdisk,
        socket,
        log,
        ..
    } = inserted;
    let pid = inserted.pid.unwrap_or_default();
    let how = match inserted.how {
        InsertionOutcome::Inserted => "tap inserted".to_owned(),
        InsertionOutcome::Restarted => "tap restarted; QEMU reconnects within seconds".to_owned(),
        InsertionOutcome::AlreadyInserted => "a tap is already inserted".to_owned(),
    };
    let minutes = RECONNECT_DELAY_S / 60;
    output::notice(format_args!(
        "weir: {vdisk} of VM {vm}: {how} (process {pid}, log {})",
        log.display()
    ));
    for remark in &inserted.remarks {
        output::notice(format_args!("weir: {vdisk} of VM {vm}: {remark}"));
    }
    output::notice(format_args!(
        "  query:   weir query --from tapdisk:{} \"select op, count(*), avg(latency) from IO [range 1 s slide 1 s] \
         group by op\"\n  remove:  weir tapdisk remove --vm {vm} --disk {vdisk}\n  if the tap is killed, the VM's \
         requests wait {minutes} minutes for `weir tapdisk insert --vm {vm} --disk {vdisk}`",
        socket.display()
    ));
}
