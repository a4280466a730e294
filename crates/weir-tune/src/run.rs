//! [`tune`]: observes a disk, makes a trial if one was requested, and reports.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::Stop;

use crate::candidate::{self, TuneCandidate};
use crate::device::{BLOCK, TuneDevice, other_writers};
use crate::measure::{self, MeasuredDisk, Measurement};
use crate::metric::Objective;
use crate::observe::{Observation, observe, trial_limits};
use crate::queue::{QueueSession, QueueState, read_state};
use crate::report::{TrialReport, TuneReport};
use crate::restore::{self, DiskFolder, RestoreScope};
use crate::trial::{Trial, TrialOptions, TrialOutcome, references};

/// The default state directory: it is emptied at boot, as the settings are.
pub const STATE: &str = "/run/weir/tune";

/// The time for which the disks of a VM are searched.
const SEARCH: Duration = Duration::from_secs(2);

/// The time that the measuring process may run longer than the trial.
const MEASURE_LONGER: Duration = Duration::from_secs(60);

/// The folder with what udev knows of devices.
const UDEV: &str = "/run/udev/data";

/// What `weir tune` does.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// The disk, such as `/dev/sda`; that of the VM without one.
    pub device: Option<String>,
    /// Declarations of VMs.
    pub declared_vms: Vec<String>,
    /// How long the disk is observed before any change.
    pub observe: Duration,
    /// How the trial is made.
    pub trial: TrialOptions,
    /// The candidates, if they were given.
    pub candidates: Option<Vec<TuneCandidate>>,
    /// Whether a trial is made.
    pub with_trial: bool,
    /// Whether the best candidate is applied.
    pub apply: bool,
    /// The state directory.
    pub state: PathBuf,
}

/// A report, and the signal that ended the run.
#[derive(Debug)]
pub struct Tuned {
    /// The report; `None` if a signal arrived before there was anything to report.
    pub report: Option<TuneReport>,
    /// The signal.
    pub signal: Option<i32>,
}

/// Observes, tries and reports.
///
/// # Errors
/// When the disk cannot be tuned or observed, or its settings cannot be changed or restored.
pub fn tune(options: &TuneOptions, stop: &Stop) -> Result<Tuned, Failure> {
    let block = Path::new(BLOCK);
    for disk in restore::restore(&options.state, block, None, RestoreScope::Killed)? {
        output::notice(format_args!(
            "weir: {}: an earlier trial was killed",
            disk.disk
        ));
        let recovery = disk.recovery.unwrap_or_default();
        restore::report(&disk.disk, &recovery);
    }
    let path = match &options.device {
        Some(path) => path.clone(),
        None => disk_of(options)?,
    };
    let device = TuneDevice::find(block, &path)?;
    let present = read_state(&device.queue()).map_err(restore::failure)?;
    for candidate in options.candidates.iter().flatten() {
        device.check(&present, &candidate.settings)?;
    }
    let folder = match options.with_trial {
        true => {
            device.check_writable()?;
            Some(DiskFolder::take(&options.state, &device.name)?)
        }
        false => None,
    };
    let measured = MeasuredDisk {
        device: device.path(),
        vms: options.declared_vms.clone(),
    };
    output::notice(format_args!(
        "weir: observing {} for {}",
        device.path(),
        quantity::span_text(options.observe)
    ));
    let (before, observation) = observe(&measured, options.observe, stop)?;
    if let Some(signal) = stop.signal() {
        return Ok(Tuned {
            report: None,
            signal: Some(signal),
        });
    }
    check_observed(&device, options, &observation)?;
    let relevance = observation.relevance(&present);
    let relevant = relevance.iter().filter(|r| r.can_matter);
    let relevant: Vec<&str> = relevant.map(|relevance| relevance.setting).collect();
    let usual = || candidate::usual(&present, &device.schedulers, &relevant);
    let candidates = options.candidates.clone().unwrap_or_else(usual);
    let mut report = TuneReport {
        device: device.path(),
        objective: options.trial.objective,
        vm: options.trial.vm.clone(),
        present,
        relevance,
        candidates,
        trial: None,
        other_writers: other_writers(Path::new("/"), device.is_zoned()),
        observation,
    };
    if let Some(folder) = folder.filter(|_| !report.candidates.is_empty()) {
        let tried = try_all(options, &device, &folder, &measured, before, &report, stop)?;
        report.trial = Some(tried);
    }
    let signal = report.trial.as_ref().and_then(|trial| match trial.end {
        TrialOutcome::Signal(signal) => Some(signal),
        _ => None,
    });
    Ok(Tuned {
        report: Some(report),
        signal,
    })
}

/// The disk of a VM: that with most of its requests.
fn disk_of(options: &TuneOptions) -> Result<String, Failure> {
    let Some(vm) = &options.trial.vm else {
        return Err(Failure::words("no disk; give one with -i, or a VM with -w"));
    };
    let disks = measure::disks_of(vm, &options.declared_vms, SEARCH)?;
    let [first, others @ ..] = &disks[..] else {
        return Err(Failure::world(format_args!(
            "-w {vm}: the VM had no request in {}; give its disk with -i, or try again under load",
            quantity::span_text(SEARCH)
        )));
    };
    if !others.is_empty() {
        output::notice(format_args!(
            "weir: {vm} also uses {}; -i selects one of them",
            others.join(", ")
        ));
    }
    Ok(first.clone())
}

/// Checks that there is a load to compare settings with.
fn check_observed(
    device: &TuneDevice,
    options: &TuneOptions,
    observation: &Observation,
) -> Result<(), Failure> {
    let path = device.path();
    if observation.is_idle() {
        return Err(Failure::world(format_args!(
            "{path} is idle: {} requests in {:.0} s; settings can be compared under load only",
            observation.requests, observation.seconds
        )));
    }
    let conditions = options.trial.conditions.iter();
    let named = conditions.map(|c| &c.vm).chain(&options.trial.vm);
    for vm in named {
        if !observation.vms.contains(vm) {
            return Err(Failure::world(format_args!(
                "VM {vm} has no requests on {path}; {}",
                match observation.vms.is_empty() {
                    true => "no VM has".to_owned(),
                    false => format!("those with requests are {}", observation.vms.join(", ")),
                }
            )));
        }
    }
    if options.trial.objective == Objective::Fairness && observation.vms.len() < 2 {
        return Err(Failure::world(format_args!(
            "fairness needs two VMs with requests on {path}; there are {}",
            observation.vms.len()
        )));
    }
    Ok(())
}

/// Makes the trial and restores the settings, however it ends.
fn try_all(
    options: &TuneOptions,
    device: &TuneDevice,
    folder: &DiskFolder,
    measured: &MeasuredDisk,
    before: Measurement,
    report: &TuneReport,
    stop: &Stop,
) -> Result<TrialReport, Failure> {
    let mut trial_options = options.trial.clone();
    trial_options.vms = report.observation.vms.clone();
    let conditions = trial_options.conditions.iter();
    let mut subjects: BTreeSet<Option<String>> = conditions.map(|c| Some(c.vm.clone())).collect();
    subjects.insert(trial_options.vm.clone());
    let limits = trial_limits(&before.log, &subjects);
    let references = references(&before.log, &subjects);
    drop(before);
    let length = Trial::length(&trial_options, report.candidates.len());
    let measurement = Measurement::start(measured, limits, 2 * length + MEASURE_LONGER)?;
    let session = QueueSession::begin(device.queue(), &folder.journal());
    let mut session = session.map_err(restore::failure)?;
    let mut trial = Trial::new(
        &trial_options,
        &report.candidates,
        &mut session,
        measurement,
        &references,
    );
    let ran = trial.run(stop);
    let (blocks, result, notes) = trial.finish();
    let restored = session.restore().map_err(restore::failure)?;
    output::notice("weir: the settings were restored");
    restore::report_foreign(&device.name, &restored);
    let end = ran?;
    let decided = matches!(end, TrialOutcome::Complete | TrialOutcome::Early);
    let winner = result.as_ref().and_then(|result| result.winner);
    let winner = winner
        .filter(|_| decided)
        .map(|index| &report.candidates[index]);
    let applied = match winner {
        Some(winner) if options.apply => {
            apply(device, folder, &winner.settings)?;
            true
        }
        _ => false,
    };
    Ok(TrialReport {
        rounds: trial_options.rounds,
        block_s: trial_options.block.as_secs_f64(),
        settle_s: trial_options.settle.as_secs_f64(),
        seed: trial_options.seed,
        effect_min: trial_options.effect_min,
        conditions: trial_options.conditions.clone(),
        end,
        blocks,
        result,
        advice: winner.map(|winner| winner.name.clone()),
        udev_rule: winner.map(|winner| device.rule(&winner.settings, Path::new(UDEV))),
        applied,
        restored,
        notes: notes_of_interest(&notes),
    })
}

/// What the measuring process has reported, without the remark that it was ended within a slice.
fn notes_of_interest(notes: &str) -> String {
    let lines = notes.lines().filter(|line| !line.contains("last slide"));
    let lines = lines.map(|line| line.strip_prefix("weir: ").unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Sets the settings until the next boot, so that they can be restored.
fn apply(device: &TuneDevice, folder: &DiskFolder, settings: &QueueState) -> Result<(), Failure> {
    let session = QueueSession::begin(device.queue(), &folder.journal());
    let mut session = session.map_err(restore::failure)?;
    if let Err(error) = session.set(settings) {
        session.restore().map_err(restore::failure)?;
        return Err(restore::failure(error));
    }
    session.keep(&folder.applied()).map_err(restore::failure)
}
