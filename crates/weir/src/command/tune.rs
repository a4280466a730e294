//! `weir tune`: compares queue settings of a disk on its live load.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use weir_tune::candidate::{self, TuneCandidate};
use weir_tune::device::BLOCK;
use weir_tune::guest::serve::{GuestOptions, serve};
use weir_tune::html;
use weir_tune::lease::{LEASE_MAX, LeaseEnd};
use weir_tune::metric::{Objective, TuneCondition};
use weir_tune::replay::plan::Pacing;
use weir_tune::replay::rows::RecordingChoice;
use weir_tune::replay::run::ReplayOptions;
use weir_tune::report::json;
use weir_tune::restore::{self, RestoreScope};
use weir_tune::run::{Applied, STATE, TuneOptions, TunedGuest, tune};
use weir_tune::trial::{TrialOptions, TrialOutcome};

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::Stop;
use weir_runtime::source::{self, SourceOptions};

/// Compare queue settings of a disk on its live load
///
/// First the disk is observed: which settings can matter for its load, and which cannot. With --try
/// the settings are changed in turn, in random order and with the present ones as a control, while
/// the load runs; all of them are restored at the end, at Ctrl-C, and when a watched p99 doubles.
/// The report names the settings that are better by more than the noise, or states that there is no
/// difference.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir tune -i /dev/sda --for p99\n  \
    weir tune -i /dev/sda --for p99 --try\n  \
    weir tune -w db1 --for p99 --not-worse mail:p99=10% --try\n  \
    weir tune -i sda --for throughput --candidates none,kyber,bfq+nr_requests=64 --try --json\n  \
    weir tune -i sda --for iops --try --apply --lease 8h --html report.html\n  \
    weir tune --restore\n  \
    weir tune -w db1 --for p99 --try --guest /run/db1.sock --guest-disk vda\n  \
    weir tune --serve /dev/virtio-ports/weir.tune --allow vda\n  \
    weir tune --replay db.parquet -i /dev/sda --on /dev/sdx\n  \
    weir tune --replay db.parquet --on /dev/sdx --for p99 --try\n\n\
    A trial needs root. Its settings are written below /sys/block, and each write is in a journal\n\
    before it is made: after a kill, --restore or the next `weir tune` restores what was there.\n\n\
    With --replay the load is that of a recording, on a scratch disk that nothing else uses: how\n\
    faithful it is is measured and reported, and with --try each block begins with its first request.")]
pub struct TuneArgs {
    /// Tune this disk of the host; with --replay, replay the requests of this recorded disk
    #[arg(short = 'i', long = "only-disk", value_name = "DISK", value_parser = source::disk)]
    only_disk: Option<String>,
    /// Only the requests of this VM count; without -i, its disk with most requests is tuned; with
    /// --replay, replay the requests of this VM
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// Objective: a lower 99th percentile of the latency, more requests per second, more bytes per
    /// second, or more equal throughput of the VMs
    #[arg(long = "for", value_name = "OBJECTIVE",
          required_unless_present_any = ["restore", "replay", "serve"], value_parser = objectives())]
    objective: Option<Objective>,
    /// Advise only settings with which this VM is not worse by more than this, such as
    /// mail:p99=10%; p99, iops or throughput; may be repeated [default: no condition]
    #[arg(long, value_name = "CONDITION")]
    not_worse: Vec<TuneCondition>,
    /// Change the settings during the live load, and restore them
    #[arg(long = "try")]
    with_trial: bool,
    /// Settings to compare with the present ones: by commas, each a scheduler or SETTING=VALUE,
    /// several joined by + [default: what can matter for the load]
    #[arg(long, value_name = "LIST", value_parser = candidates)]
    candidates: Option<CandidateList>,
    /// Number of rounds, 1 to 50; fewer than 6 hardly show a difference
    #[arg(long, value_name = "COUNT", default_value_t = 8,
          value_parser = clap::value_parser!(u8).range(1..=50))]
    rounds: u8,
    /// Measured part of a block
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = block)]
    block: Duration,
    /// Time after a change that is not measured
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = quantity::span)]
    settle: Duration,
    /// Time for which the disk is observed before any change
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = block)]
    observe: Duration,
    /// Seed of the random order [default: a random one, which is reported]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Smallest change that counts
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    min_effect: f64,
    /// Abort when a watched p99 exceeds this multiple of its largest value before the first change
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0, value_parser = factor)]
    abort_factor: f64,
    /// Apply the advised settings for the time of --lease, while the command waits
    #[arg(long, requires = "with_trial")]
    apply: bool,
    /// Time for which --apply sets them, up to 24h; `boot` ends the command and leaves them until
    /// the next boot. --restore ends both
    #[arg(long, value_name = "DURATION", default_value = "1h", requires = "apply",
          value_parser = lease)]
    lease: Applied,
    /// Replay the requests of this recording on the disk of --on, and measure how faithful that is;
    /// any format that `weir convert --formats` lists
    #[arg(long, value_name = "FILE", requires = "on", conflicts_with_all = ["restore", "not_worse"])]
    replay: Option<PathBuf>,
    /// Scratch disk for --replay, which nothing else may use
    #[arg(long, value_name = "DISK", requires = "replay")]
    on: Option<String>,
    /// Replay only the first part of the recording [default: all of it; with --try, as much as a
    /// block needs]
    #[arg(long, value_name = "DURATION", requires = "replay", value_parser = quantity::span)]
    replay_for: Option<Duration>,
    /// When requests are issued: `open` at the recorded times, `closed` when as many have ended as
    /// in the recording [default: open; closed for iops and throughput]
    #[arg(long = "loop", value_name = "KIND", requires = "replay", value_parser = pacings())]
    pacing: Option<Pacing>,
    /// Replay this many times as fast
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "replay",
          value_parser = speed)]
    speed: f64,
    /// Scale addresses if the disk is smaller than the recorded one; otherwise that is an error
    #[arg(long, requires = "replay")]
    scale: bool,
    /// Leave writes and flushes out; the disk is opened to read only
    #[arg(long, requires = "replay")]
    reads_only: bool,
    /// Replay on a disk that has data, which is lost
    #[arg(long, requires = "replay", conflicts_with = "reads_only")]
    overwrite: bool,
    /// Compare settings of a guest's disk as well, through this socket of QEMU for a port to the
    /// guest, in which `weir tune --serve` runs; without --candidates, all pairs of schedulers
    #[arg(long, value_name = "SOCKET", requires_all = ["guest_disk", "with_trial"])]
    guest: Option<PathBuf>,
    /// The disk in the guest, such as vda
    #[arg(long, value_name = "DISK", requires = "guest", value_parser = kernel_name)]
    guest_disk: Option<String>,
    /// In a guest: permit the host to change the queues of the disks of --allow through this port,
    /// such as /dev/virtio-ports/weir.tune, until Ctrl-C
    #[arg(long, value_name = "PATH", requires = "allow",
          conflicts_with_all = ["with_trial", "objective", "only_vm", "only_disk", "restore",
                                "replay", "html", "json"])]
    serve: Option<PathBuf>,
    /// A disk that --serve permits to change; may be repeated
    #[arg(long, value_name = "DISK", requires = "serve", value_parser = kernel_name)]
    allow: Vec<String>,
    /// Write the report with plots as one HTML page
    #[arg(long, value_name = "FILE", conflicts_with = "restore")]
    html: Option<PathBuf>,
    /// Restore the settings that a killed trial or --apply has changed, of all disks or of -i, and
    /// exit
    #[arg(long, conflicts_with_all = ["with_trial", "objective", "only_vm"])]
    restore: bool,
    /// Declare processes to be a VM: NAME=pid:PID, NAME=comm:COMMAND or NAME=cgroup:PATH, or @FILE
    /// with one declaration per line; may be repeated
    #[arg(long, value_name = "NAME=PROCESSES")]
    vm: Vec<String>,
    /// Directory for the journals [default: /run/weir/tune]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print the report as one JSON object
    #[arg(short = 'j', long)]
    json: bool,
}

/// The candidates of `--candidates`.
#[derive(Clone, Debug)]
struct CandidateList(Vec<TuneCandidate>);

fn candidates(text: &str) -> Result<CandidateList, String> {
    candidate::parse(text).map(CandidateList)
}

fn objectives() -> impl TypedValueParser<Value = Objective> {
    let names = Objective::ALL.map(|(name, _)| name);
    PossibleValuesParser::new(names).map(|name| name.parse().expect("a name of an objective"))
}

/// Blocks are measured in slices of 100 ms, and watched over a second.
fn block(text: &str) -> Result<Duration, String> {
    let span = quantity::span(text)?;
    match (Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&span) {
        true => Ok(span),
        false => Err("expected a duration from 500ms to 1h".to_owned()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse().ok();
    let number = number.filter(|number| (0.0..=1000.0).contains(number));
    number.ok_or_else(|| "expected a percentage, such as 5%".to_owned())
}

fn factor(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (1.0..=1e6).contains(number));
    number.ok_or_else(|| "expected a number of at least 1, such as 2".to_owned())
}

/// A disk by its path or its name.
fn kernel_name(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("/dev/").unwrap_or(text).replace('/', "!");
    match name.is_empty() || name.contains("..") {
        true => Err("expected a disk, such as vda".to_owned()),
        false => Ok(name),
    }
}

fn lease(text: &str) -> Result<Applied, String> {
    if text == "boot" {
        return Ok(Applied::UntilBoot);
    }
    let span = quantity::span(text)?;
    match span <= LEASE_MAX {
        true => Ok(Applied::Lease(span)),
        false => Err("expected a duration up to 24h, or `boot`".to_owned()),
    }
}

fn pacings() -> impl TypedValueParser<Value = Pacing> {
    PossibleValuesParser::new(["open", "closed"]).map(|name| match &*name {
        "closed" => Pacing::Closed,
        _ => Pacing::Open,
    })
}

fn speed(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (0.01..=1e4).contains(number));
    number.ok_or_else(|| "expected a number from 0.01 to 10000, such as 2".to_owned())
}

pub fn run(args: &TuneArgs) -> Result<Ending, Failure> {
    let state = args.state.clone().unwrap_or_else(|| STATE.into());
    if args.restore {
        return restore_settings(args, &state);
    }
    if let Some(port) = &args.serve {
        return serve_host(port, &args.allow, &state);
    }
    if args.apply && args.guest.is_some() && args.lease == Applied::UntilBoot {
        return Err(Failure::words(
            "--lease boot: a guest keeps settings for the time of a lease only; give a duration",
        ));
    }
    let is_replay = args.replay.is_some();
    if is_replay && args.objective == Some(Objective::Fairness) {
        return Err(Failure::words(
            "--for fairness needs several VMs; the requests of a replay are of one process",
        ));
    }
    if is_replay && args.with_trial && args.objective.is_none() {
        return Err(Failure::words(
            "--replay with --try needs an objective: --for p99",
        ));
    }
    if is_replay && args.objective.is_some() && !args.with_trial {
        return Err(Failure::words(
            "--replay with --for compares settings: add --try",
        ));
    }
    let mut disk = args.only_disk.clone();
    if !is_replay {
        let source = SourceOptions::of("live", &[], true, &args.vm);
        let mut source = source.map_err(|error| Failure::words(format_args!("--vm: {error}")))?;
        names::find(&mut source, args.only_vm.as_deref(), &mut disk)?;
    }
    let page = args.html.as_ref().map(|path| output::file(path));
    let page = page.transpose()?;
    let stop = Stop::on_signals()?;
    let tuned = tune(&options(args, disk, state), &stop)?;
    let mut ending = tuned.signal.map_or(Ending::Done, Ending::Signal);
    if let Some(replay) = &tuned.replay {
        match args.json {
            true => output::print(&json(replay)?)?,
            false => output::print(&replay.text())?,
        }
    }
    if let Some(report) = &tuned.report {
        if let Some(mut page) = page {
            page.put(&html::page(report))?;
            page.flush()?;
        }
        match args.json {
            true => output::print(&json(report)?)?,
            false => output::print(&report.text())?,
        }
        let is_failed = report.trial.as_ref().is_some_and(|trial| {
            let is_aborted = matches!(trial.end, TrialOutcome::Aborted(_));
            is_aborted || !trial.restored.foreign.is_empty()
        });
        if is_failed && ending == Ending::Done {
            ending = Ending::Failed;
        }
    }
    if let Some(lease) = tuned.lease {
        let (end, recovery) = lease.hold(&stop)?;
        ending = match (end, recovery.foreign.is_empty(), ending) {
            (LeaseEnd::Signal(signal), ..) => Ending::Signal(signal),
            (_, false, Ending::Done) => Ending::Failed,
            (_, _, ending) => ending,
        };
    }
    Ok(ending)
}

/// `--serve`.
fn serve_host(port: &Path, allowed: &[String], state: &Path) -> Result<Ending, Failure> {
    let failed = |error| Failure::world(format_args!("--serve {}: {error}", port.display()));
    let options = GuestOptions::new(allowed.to_vec(), state);
    let stop = Stop::on_signals()?;
    let found = std::fs::metadata(port).map_err(failed)?;
    output::notice(format_args!(
        "weir: the host may change the queues of {}",
        allowed.join(", ")
    ));
    match found.file_type().is_socket() {
        true => {
            let mut stream = UnixStream::connect(port).map_err(failed)?;
            serve(&mut stream, &options, &stop)?;
        }
        false => {
            let file = File::options().read(true).write(true).open(port);
            serve(&mut file.map_err(failed)?, &options, &stop)?;
        }
    }
    Ok(stop.signal().map_or(Ending::Done, Ending::of_service))
}

fn options(args: &TuneArgs, device: Option<String>, state: PathBuf) -> TuneOptions {
    let seed = args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
        now.map_or(0, |since| u64::from(since.subsec_nanos()))
    });
    let replay = replay_options(args);
    TuneOptions {
        device,
        declared_vms: args.vm.clone(),
        observe: args.observe,
        trial: TrialOptions {
            objective: args.objective.unwrap_or(Objective::P99),
            // The requests of a replay are those of one process.
            vm: args.only_vm.clone().filter(|_| replay.is_none()),
            conditions: args.not_worse.clone(),
            vms: Vec::new(),
            rounds: args.rounds.into(),
            block: args.block,
            settle: args.settle,
            seed,
            abort_factor: args.abort_factor,
            effect_min: args.min_effect / 100.0,
        },
        replay,
        guest: args
            .guest
            .clone()
            .zip(args.guest_disk.clone())
            .map(|(socket, disk)| TunedGuest { socket, disk }),
        candidates: args.candidates.clone().map(|list| list.0),
        with_trial: args.with_trial,
        apply: args.apply.then_some(args.lease),
        state,
    }
}

/// The replay, if there is one. A trial replays what a block needs again and again.
fn replay_options(args: &TuneArgs) -> Option<ReplayOptions> {
    let of_block = (args.settle + args.block + BLOCK_LONGER).mul_f64(args.speed);
    let span = match (args.with_trial, args.replay_for) {
        (true, Some(span)) => Some(span.min(of_block)),
        (true, None) => Some(of_block),
        (false, span) => span,
    };
    let is_rate = matches!(
        args.objective,
        Some(Objective::Iops | Objective::Throughput)
    );
    let usual = match is_rate {
        true => Pacing::Closed,
        false => Pacing::Open,
    };
    Some(ReplayOptions {
        recording: RecordingChoice {
            path: args.replay.as_ref()?.display().to_string(),
            vm: args.only_vm.clone(),
            disk: args.only_disk.clone(),
            span,
        },
        device: args.on.clone().expect("it is required with --replay"),
        reads_only: args.reads_only,
        overwrite: args.overwrite,
        scale: args.scale,
        pacing: args.pacing.unwrap_or(usual),
        speed: args.speed,
    })
}

/// The time by which a block is longer than its measured part: slices end at multiples of 100 ms.
const BLOCK_LONGER: Duration = Duration::from_millis(500);

/// `--restore`.
fn restore_settings(args: &TuneArgs, state: &Path) -> Result<Ending, Failure> {
    let only = args.only_disk.as_deref();
    let only = only.map(|disk| disk.trim_start_matches("/dev/").replace('/', "!"));
    let block = Path::new(BLOCK);
    let disks = restore::restore(state, block, only.as_deref(), RestoreScope::All)?;
    let mut ending = Ending::Done;
    for disk in &disks {
        match &disk.recovery {
            Some(recovery) if restore::report(&disk.disk, recovery) => ending = Ending::Failed,
            Some(_) => {}
            None => output::notice(format_args!(
                "weir: {}: there is no such disk any more; nothing to restore",
                disk.disk
            )),
        }
    }
    match (args.json, disks.is_empty()) {
        (true, _) => {
            output::print(&json(&disks)?)?;
        }
        (false, true) => output::print("nothing to restore\n")?,
        (false, false) => {}
    }
    Ok(ending)
}
