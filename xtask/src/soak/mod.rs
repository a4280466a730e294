//! `cargo xtask soak`: agents, monitor, tapdisk and exporter under load and faults for a long time.
//!
//! It starts a monitor, an agent that observes loop devices, a tapdisk (with a guest if the guest
//! kit exists) with an agent of its own, and an exporter. A load with a known number of requests
//! runs on all disks, and faults occur in an order that a seed determines. It samples memory,
//! descriptors, threads, BPF objects and state directories of every process.
//!
//! At the end three things must hold, and the exit code is 1 if one does not: the requests that
//! were delivered and those that were counted as lost equal the counts of the kernel or the guest;
//! each series is flat over the second half ([`fit`]); nothing that was started is left. Processes
//! are killed in the first half only, so that the second half is one lifetime of each process.
//!
//! The report is a Markdown page, an SVG file and a JSON file. Ctrl-C ends the run in order.

mod account;
mod fault;
mod fit;
mod leftover;
mod plot;
mod report;
mod sample;
mod schedule;
mod setup;
mod virtual_disk;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{build_weir, is_root, number, packages, root};
use report::Outcome;
use schedule::{FaultKind, Schedule};
use setup::Setup;

const USAGE: &str = "usage: cargo xtask soak [--for 24h] [--seed N] [--report DIR] [--rate REQUESTS] \
                     [--weir PROGRAM] [--without-guest] [--fault KIND]..";

/// The number of samples of a run.
const SAMPLES: u32 = 720;

/// The limits of the time between two samples, and between two progress lines.
const SAMPLE_EVERY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
const PROGRESS_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// The options of a run.
#[derive(Clone, Debug)]
struct Options {
    duration: Duration,
    seed: u64,
    report: PathBuf,
    /// Requests per second of each disk.
    rate: u64,
    weir: Option<PathBuf>,
    guest: bool,
    /// The kinds of faults.
    faults: Vec<FaultKind>,
}

/// Set in the environment of the process that does the work.
const WORKER: &str = "WEIR_SOAK_WORKER";

/// Runs the soak.
pub fn run(args: &[String]) -> Result<()> {
    let mut options = parse(args)?;
    if std::env::var_os(WORKER).is_none() {
        if !is_root() {
            bail!(
                "requires root: it creates loop devices and network namespaces, and attaches probes"
            );
        }
        packages::ensure(&["iproute2", "bpftool"])?;
        if options.weir.is_none() {
            build_weir("demo")?;
        }
        return in_own_group(&options, args);
    }
    if options.weir.is_none() {
        options.weir = Some(root().join("target/demo/weir"));
    }
    soak(&options)
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options {
        duration: Duration::from_secs(24 * 3600),
        seed: fastrand::u64(..) >> 32,
        report: root().join("target/soak"),
        rate: 20,
        weir: None,
        guest: true,
        faults: Vec::new(),
    };
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let mut path = || match rest.next() {
            Some(path) => Ok(PathBuf::from(path)),
            None => bail!("{arg} needs a path"),
        };
        match arg.as_str() {
            "--report" => options.report = path()?,
            "--weir" => options.weir = Some(path()?),
            "--without-guest" => options.guest = false,
            "--fault" => options.faults.push(FaultKind::named(rest.next())?),
            "--for" => options.duration = duration(rest.next())?,
            "--seed" => options.seed = number(arg, rest.next())?,
            "--rate" => options.rate = number::<u64>(arg, rest.next())?.max(1),
            other => bail!("unknown argument {other}; {USAGE}"),
        }
    }
    if options.faults.is_empty() {
        options.faults = FaultKind::all();
    }
    Ok(options)
}

/// A time such as `20s`, `60m`, `24h` or `7d`.
fn duration(text: Option<&String>) -> Result<Duration> {
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
    let parsed = text.and_then(|text| {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let seconds = units.iter().find(|(name, _)| *name == unit)?.1;
        digits.parse::<u64>().ok()?.checked_mul(seconds)
    });
    match parsed {
        Some(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => bail!("--for needs a time, such as 20s, 60m or 24h"),
    }
}

/// Runs this program again in a process group of its own and passes signals on to it. A terminal's
/// Ctrl-C reaches all processes of a group: agents and monitor would end before the last request is
/// counted.
fn in_own_group(options: &Options, args: &[String]) -> Result<()> {
    let stop = stop_on_signals()?;
    let program = std::env::current_exe().context("the path of this program")?;
    let mut worker = Command::new("setpriv")
        .args(["--pdeathsig", "TERM"])
        .arg(program)
        .arg("soak")
        .args(args)
        .args(["--seed", &options.seed.to_string()])
        .env(WORKER, "1")
        .process_group(0)
        .spawn()
        .context("cannot start setpriv (package util-linux)")?;
    let mut is_asked = false;
    let status = loop {
        if let Some(status) = worker.try_wait()? {
            break status;
        }
        if stop.load(Ordering::Relaxed) && !is_asked {
            is_asked = true;
            setup::signal(worker.id(), "TERM")?;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    match status.success() {
        true => Ok(()),
        false => bail!("the soak failed; the report has the reasons"),
    }
}

fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// The whole run, in the process of its own group.
fn soak(options: &Options) -> Result<()> {
    let stop = stop_on_signals()?;
    println!(
        "soak for {}, seed {}, report in {}",
        clock(options.duration),
        options.seed,
        options.report.display()
    );
    let mut outcome = Outcome::new(options.seed, options.duration, options.rate);
    let before = leftover::Existing::now();
    let mut run = Run::new(options, stop)?;
    println!("set up: {}", run.setup.description());
    let worked = run.work();
    let is_interrupted = run.is_stopped();
    outcome.ran = run.started.elapsed();
    outcome.balances = run.setup.end_load().unwrap_or_else(|error| {
        outcome.failures.push(format!("{error:#}"));
        Vec::new()
    });
    if let Err(error) = worked {
        outcome.failures.push(format!("{error:#}"));
    }
    outcome.is_interrupted = is_interrupted;
    let traces = run.setup.traces();
    let logs = run.setup.logs();
    (outcome.faults, outcome.series) = (run.faults, run.samples.series());
    outcome.description = run.setup.description();
    if let Err(error) = run.setup.end() {
        outcome.failures.push(format!("{error:#}"));
    }
    outcome.left = leftover::find(&before, &traces, run.samples.bpf_objects());
    outcome.judge();
    outcome.write(&options.report, &logs)?;
    match outcome.holds() {
        true => Ok(()),
        false => bail!(
            "it does not hold: {}",
            options.report.join("soak.md").display()
        ),
    }
}

/// A running soak.
struct Run<'a> {
    options: &'a Options,
    setup: Setup,
    samples: sample::Samples,
    /// The faults so far: when, in seconds after the start, and what.
    faults: Vec<(f64, String)>,
    stop: Arc<AtomicBool>,
    started: Instant,
    next_sample: Instant,
    next_progress: Instant,
}

impl Run<'_> {
    fn new(options: &Options, stop: Arc<AtomicBool>) -> Result<Run<'_>> {
        let setup = Setup::new(options)?;
        let started = Instant::now();
        Ok(Run {
            options,
            setup,
            samples: sample::Samples::default(),
            faults: Vec::new(),
            stop,
            started,
            next_sample: started,
            next_progress: started,
        })
    }

    /// Load and faults until the time has passed or a signal arrives.
    fn work(&mut self) -> Result<()> {
        let Options { seed, duration, .. } = *self.options;
        let mut schedule = Schedule::new(seed, duration, &self.options.faults);
        loop {
            let has_had_each = schedule.has_had_each();
            let event = schedule.next(self.started.elapsed() * 2 >= duration);
            self.wait(event.gap);
            let is_time_up = self.started.elapsed() >= duration;
            if self.is_stopped() || (is_time_up && has_had_each) {
                return Ok(());
            }
            let at_seconds = self.started.elapsed().as_secs_f64();
            let done = fault::cause(self, &event);
            let what = done.with_context(|| format!("{:?}", event.kind))?;
            self.faults.push((at_seconds, what));
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits for this time or until a signal arrives; takes samples and prints progress meanwhile.
    fn wait(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.is_stopped() {
            self.poll();
            let rest = until.saturating_duration_since(Instant::now());
            std::thread::sleep(rest.min(Duration::from_millis(100)));
        }
    }

    /// Takes a sample and prints progress when they are due.
    fn poll(&mut self) {
        let now = Instant::now();
        if now >= self.next_sample {
            self.next_sample = now + share(self.options.duration, SAMPLES, SAMPLE_EVERY);
            let at = self.started.elapsed().as_secs_f64();
            self.samples.take(at, &self.setup);
        }
        if now >= self.next_progress {
            self.next_progress = now + share(self.options.duration, 60, PROGRESS_EVERY);
            println!(
                "{} of {}: {} faults, {} requests, {}",
                clock(self.started.elapsed()),
                clock(self.options.duration),
                self.faults.len(),
                self.setup.requests(),
                self.samples.latest()
            );
        }
    }
}

fn share(whole: Duration, parts: u32, (least, most): (Duration, Duration)) -> Duration {
    (whole / parts).clamp(least, most)
}

/// A time as hours, minutes and seconds.
fn clock(time: Duration) -> String {
    let s = time.as_secs();
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}
