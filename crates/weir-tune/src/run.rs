//! [`tune`]: observes a disk, makes a trial if one was requested, and reports.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::Stop;

use crate::candidate::{self, TuneCandidate};
use crate::clock::TrialClock;
use crate::device::{BLOCK, TuneDevice, other_writers};
use crate::guest::client::GuestSession;
use crate::lease::TuneLease;
use crate::measure::{self, MeasuredDisk, Measurement};
use crate::metric::Objective;
use crate::observe::{Observation, observe, trial_limits};
use crate::queue::{QueueSession, QueueState, SCHEDULER, read_state};
use crate::replay::player::ReplayLoad;
use crate::replay::report::ReplayReport;
use crate::replay::run::{PreparedReplay, ReplayOptions, notes_without_slides, prepare};
use crate::report::{TrialReport, TuneReport};
use crate::restore::{self, DiskFolder, RestoreScope};
use crate::trial::{Trial, TrialOptions, TrialOutcome, TrialWith, references};

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
    /// The recording that is the load; the live load without one.
    pub replay: Option<ReplayOptions>,
    /// The guest whose disk is tuned as well.
    pub guest: Option<TunedGuest>,
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
    /// Whether the best candidate is applied, and how long.
    pub apply: Option<Applied>,
    /// The state directory.
    pub state: PathBuf,
}

/// A disk of a guest.
#[derive(Clone, Debug)]
pub struct TunedGuest {
    /// The socket of QEMU for the port to the guest.
    pub socket: PathBuf,
    /// The name of the disk in the guest.
    pub disk: String,
}

/// How long the best candidate is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// For a time, in which this process waits.
    Lease(Duration),
    /// Until the next boot or `weir tune --restore`.
    UntilBoot,
}

/// A report, and the signal that ended the run.
#[derive(Debug)]
pub struct Tuned {
    /// The report; `None` if a signal arrived before there was anything to report.
    pub report: Option<TuneReport>,
    /// The report of a replay without a trial.
    pub replay: Option<ReplayReport>,
    /// The lease of the applied settings, which is to be held.
    pub lease: Option<TuneLease>,
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
    let prepared = options.replay.as_ref().map(prepare).transpose()?;
    if let (Some(prepared), false) = (&prepared, options.with_trial) {
        let replay = prepared.measure(stop)?;
        return Ok(Tuned {
            report: None,
            replay: Some(replay),
            lease: None,
            signal: stop.signal(),
        });
    }
    let path = match (&prepared, &options.device) {
        (Some(prepared), _) => prepared.disk.path(),
        (None, Some(path)) => path.clone(),
        (None, None) => disk_of(options)?,
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
    let load = ReplayedLoad::start(prepared.as_ref(), stop)?;
    let (replay, load) = (load.report, load.load);
    let guest = options.guest.as_ref();
    let guest = guest.map(|guest| GuestSession::begin(&guest.socket, &guest.disk));
    let guest = guest.transpose()?;
    check_guest(options, guest.as_ref())?;
    let with = TrialWith {
        load: load.as_ref(),
        guest: guest.as_ref(),
    };
    let tuned = observe_and_try(options, &device, folder, present, with, stop);
    // The guest restores its settings also after an error.
    let mut tuned = match (tuned, guest) {
        (Ok(mut tuned), Some(guest)) => {
            end_guest(&mut tuned, guest)?;
            tuned
        }
        (tuned, _) => tuned?,
    };
    match &mut tuned.report {
        Some(report) => report.replay = replay,
        None => tuned.replay = replay,
    }
    Ok(tuned)
}

/// Checks that candidates have settings of a guest only with one, and those it has.
fn check_guest(options: &TuneOptions, guest: Option<&GuestSession>) -> Result<(), Failure> {
    for candidate in options.candidates.iter().flatten() {
        let (name, in_guest) = (&candidate.name, &candidate.guest);
        let Some(guest) = guest.filter(|_| !in_guest.is_empty()) else {
            if in_guest.is_empty() {
                continue;
            }
            return Err(Failure::words(format_args!(
                "--candidates {name}: settings of a guest need --guest and --guest-disk"
            )));
        };
        let scheduler = in_guest.get(SCHEDULER);
        if let Some(scheduler) = scheduler.filter(|s| !guest.schedulers.contains(s)) {
            return Err(Failure::words(format_args!(
                "--candidates {name}: the guest does not have scheduler `{scheduler}`; it offers {}",
                guest.schedulers.join(", ")
            )));
        }
    }
    Ok(())
}

/// Has the guest restore its settings, or keeps its session with the lease.
fn end_guest(tuned: &mut Tuned, guest: GuestSession) -> Result<(), Failure> {
    match &mut tuned.lease {
        Some(lease) => lease.keep_guest(guest),
        None => {
            let recovery = guest.restore()?;
            output::notice("weir: the settings of the guest were restored");
            restore::report_foreign("guest", &recovery);
        }
    }
    Ok(())
}

/// The load of a trial, if it is a replay.
struct ReplayedLoad {
    /// How faithful it is.
    report: Option<ReplayReport>,
    /// It runs.
    load: Option<ReplayLoad>,
}

impl ReplayedLoad {
    fn start(prepared: Option<&PreparedReplay>, stop: &Stop) -> Result<ReplayedLoad, Failure> {
        let Some(prepared) = prepared else {
            return Ok(ReplayedLoad {
                report: None,
                load: None,
            });
        };
        output::notice(format_args!(
            "weir: replaying on {} to measure how faithful it is",
            prepared.disk.path()
        ));
        let report = prepared.measure(stop)?;
        let load = prepared.load()?;
        load.start();
        Ok(ReplayedLoad {
            report: Some(report),
            load: Some(load),
        })
    }
}

/// Observes the disk under its load, and makes a trial if the settings can matter.
fn observe_and_try(
    options: &TuneOptions,
    device: &TuneDevice,
    folder: Option<DiskFolder>,
    present: QueueState,
    with: TrialWith<'_>,
    stop: &Stop,
) -> Result<Tuned, Failure> {
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
            replay: None,
            lease: None,
            signal: Some(signal),
        });
    }
    check_observed(device, options, &observation)?;
    let relevance = observation.relevance(&present);
    let relevant = relevance.iter().filter(|r| r.can_matter);
    let relevant: Vec<&str> = relevant.map(|relevance| relevance.setting).collect();
    let usual = || match with.guest {
        Some(guest) => candidate::pairs(
            (&present, &device.schedulers),
            (&guest.present, &guest.schedulers),
        ),
        None => candidate::usual(&present, &device.schedulers, &relevant),
    };
    let candidates = options.candidates.clone().unwrap_or_else(usual);
    let mut report = TuneReport {
        device: device.path(),
        objective: options.trial.objective,
        vm: options.trial.vm.clone(),
        present,
        relevance,
        candidates,
        replay: None,
        trial: None,
        other_writers: other_writers(Path::new("/"), device.is_zoned()),
        observation,
    };
    let mut lease = None;
    if let Some(folder) = folder.filter(|_| !report.candidates.is_empty()) {
        let mut tried = try_all(
            options,
            (device, &folder),
            &measured,
            before,
            (&report, with),
            stop,
        )?;
        let advised = report.candidates.iter();
        let advised = advised
            .clone()
            .find(|c| tried.advice.as_ref() == Some(&c.name));
        if let Some((winner, applied)) = advised.zip(options.apply) {
            tried.applied = true;
            match applied {
                Applied::UntilBoot => apply(device, &folder, &winner.settings)?,
                Applied::Lease(span) => {
                    tried.lease_s = Some(span.as_secs_f64());
                    if let Some(guest) = with.guest {
                        guest.set(&winner.guest)?;
                    }
                    let settings = (&*winner.name, &winner.settings);
                    lease = Some(TuneLease::apply(device, folder, settings, span)?);
                }
            }
        }
        report.trial = Some(tried);
    }
    let signal = report.trial.as_ref().and_then(|trial| match trial.end {
        TrialOutcome::Signal(signal) => Some(signal),
        _ => None,
    });
    Ok(Tuned {
        report: Some(report),
        replay: None,
        lease,
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
    (device, folder): (&TuneDevice, &DiskFolder),
    measured: &MeasuredDisk,
    before: Measurement,
    (report, with): (&TuneReport, TrialWith<'_>),
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
    let clock = TrialClock::start();
    let measurement = Measurement::start(measured, limits, 2 * length + MEASURE_LONGER)?;
    let session = QueueSession::begin(device.queue(), &folder.journal());
    let mut session = session.map_err(restore::failure)?;
    let mut trial = Trial::new(
        &trial_options,
        &report.candidates,
        &mut session,
        (measurement, clock),
        &references,
        with,
    );
    let ran = trial.run(stop);
    let clock_step_ns = trial.clock_step_ns();
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
        guest_settings: winner.map(|winner| winner.guest.clone()),
        udev_rule: winner
            .filter(|winner| !winner.settings.is_empty())
            .map(|winner| device.rule(&winner.settings, Path::new(UDEV))),
        applied: false,
        lease_s: None,
        restored,
        clock_step_ns,
        notes: notes_without_slides(&notes),
    })
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
