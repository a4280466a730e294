//! `weir tune`: compares queue settings of a disk on its live load.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use weir_tune::candidate::{self, TuneCandidate};
use weir_tune::device::BLOCK;
use weir_tune::metric::{Objective, TuneCondition};
use weir_tune::restore::{self, RestoreScope};
use weir_tune::run::{STATE, TuneOptions, tune};
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
    weir tune --restore\n\n\
    A trial needs root. Its settings are written below /sys/block, and each write is in a journal\n\
    before it is made: after a kill, --restore or the next `weir tune` restores what was there.")]
pub struct TuneArgs {
    /// Tune this disk of the host
    #[arg(short = 'i', long = "only-disk", value_name = "DISK", value_parser = source::disk)]
    only_disk: Option<String>,
    /// Only the requests of this VM count; without -i, its disk with most requests is tuned
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// Objective: a lower 99th percentile of the latency, more requests per second, more bytes per
    /// second, or more equal throughput of the VMs
    #[arg(long = "for", value_name = "OBJECTIVE", required_unless_present = "restore",
          value_parser = objectives())]
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
    /// Apply the advised settings until the next boot; --restore undoes it
    #[arg(long, requires = "with_trial")]
    apply: bool,
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

pub fn run(args: &TuneArgs) -> Result<Ending, Failure> {
    let state = args.state.clone().unwrap_or_else(|| STATE.into());
    if args.restore {
        return restore_settings(args, &state);
    }
    let objective = args.objective.expect("it is required without --restore");
    let source = SourceOptions::of("live", &[], true, &args.vm);
    let mut source = source.map_err(|error| Failure::words(format_args!("--vm: {error}")))?;
    let mut disk = args.only_disk.clone();
    names::find(&mut source, args.only_vm.as_deref(), &mut disk)?;
    let stop = Stop::on_signals()?;
    let tuned = tune(&options(args, objective, disk, state), &stop)?;
    let mut ending = tuned.signal.map_or(Ending::Done, Ending::Signal);
    if let Some(report) = tuned.report {
        match args.json {
            true => {
                let json = serde_json::to_string(&report).map_err(std::io::Error::from)?;
                output::print(&format!("{json}\n"))?;
            }
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
    Ok(ending)
}

fn options(
    args: &TuneArgs,
    objective: Objective,
    device: Option<String>,
    state: PathBuf,
) -> TuneOptions {
    let seed = args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
        now.map_or(0, |since| u64::from(since.subsec_nanos()))
    });
    TuneOptions {
        device,
        declared_vms: args.vm.clone(),
        observe: args.observe,
        trial: TrialOptions {
            objective,
            vm: args.only_vm.clone(),
            conditions: args.not_worse.clone(),
            vms: Vec::new(),
            rounds: args.rounds.into(),
            block: args.block,
            settle: args.settle,
            seed,
            abort_factor: args.abort_factor,
            effect_min: args.min_effect / 100.0,
        },
        candidates: args.candidates.clone().map(|list| list.0),
        with_trial: args.with_trial,
        apply: args.apply,
        state,
    }
}

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
            let json = serde_json::to_string(&disks).map_err(std::io::Error::from)?;
            output::print(&format!("{json}\n"))?;
        }
        (false, true) => output::print("nothing to restore\n")?,
        (false, false) => {}
    }
    Ok(ending)
}
