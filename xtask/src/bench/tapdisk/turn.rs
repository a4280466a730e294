//! One case under one load for some seconds: its back end is started, connected to a consumer,
//! loaded, and ended.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::case::{Case, Consumer, Front, Operation, example};
use super::medium::Medium;
use crate::execute;
use crate::time_used::process_ns;

/// The result of one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub iops: f64,
    pub p50_ns: f64,
    pub p99_ns: f64,
    /// Processor time of the back end for one request.
    pub back_end_ns: f64,
    /// Processor time of the consumer for one request.
    pub listener_ns: f64,
    /// Records lost to a full ring, per request.
    pub lost: f64,
}

/// The timeout for a back end to open its socket.
const START_TIME: Duration = Duration::from_secs(10);

/// The load of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub operation: Operation,
    pub depth: u32,
    pub seconds: u32,
}

/// The processors of the programs of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    back_end: Option<usize>,
    load: Option<usize>,
    listener: Option<usize>,
}

impl Processors {
    /// A processor for each program, where there are three; of two, the listener shares that of the
    /// load; one alone is not assigned.
    pub fn of_this_machine() -> Processors {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let one = |number: usize| (count > 1).then_some(number);
        Processors {
            back_end: one(0),
            load: one(1),
            listener: one(if count > 2 { 2 } else { 1 }),
        }
    }

    /// Which program shares a processor, as text.
    pub fn text(self) -> &'static str {
        match self {
            Processors { back_end: None, .. } => "all programs share one processor",
            Processors { load, listener, .. } if load == listener => {
                "the back end has a processor, load and listener share the other one"
            }
            _ => "back end, load and listener have a processor each",
        }
    }
}

/// The command, on one processor.
fn pinned(command: &Command, processor: Option<usize>) -> Command {
    let mut pinned;
    match processor {
        Some(processor) => {
            pinned = Command::new("taskset");
            pinned.args(["--cpu-list", &processor.to_string()]);
            pinned.arg(command.get_program());
        }
        None => pinned = Command::new(command.get_program()),
    }
    pinned.args(command.get_args());
    pinned
}

/// Runs the measurement; sockets are created in `folder`.
pub fn turn(
    case: &Case,
    medium: &Medium,
    load_options: Load,
    processors: Processors,
    folder: &Path,
) -> Result<Turn> {
    let socket = folder.join("disk.sock");
    let command = pinned(&case.command(medium, &socket), processors.back_end);
    let mut back_end = Running::start(command, case.name)?;
    back_end.until_listening(&socket)?;
    let mut consumer = consumer(case.consumer, &tap_of(&socket), medium, processors)?;
    let load = |seconds| {
        let options = Load {
            seconds,
            ..load_options
        };
        load(case.front, &socket, options, processors)
    };
    // Also ensures that the consumer is connected before anything is counted.
    load(1)?;
    let spent_ns = || -> Result<_> {
        let of_consumer = consumer.as_ref().map_or(Ok(0.0), Running::spent_ns);
        Ok((back_end.spent_ns()?, of_consumer?))
    };
    let before = spent_ns()?;
    let loaded = load(load_options.seconds)?;
    let after = spent_ns()?;
    let lost = match consumer.take() {
        Some(consumer) => consumer.lost()?,
        None => 0.0,
    };
    back_end.end()?;
    // Not every back end removes its socket.
    drop(std::fs::remove_file(&socket));
    Ok(Turn {
        iops: loaded.iops,
        p50_ns: loaded.p50_ns,
        p99_ns: loaded.p99_ns,
        back_end_ns: (after.0 - before.0) / loaded.requests,
        listener_ns: (after.1 - before.1) / loaded.requests,
        lost: lost / loaded.requests,
    })
}

fn tap_of(socket: &Path) -> PathBuf {
    PathBuf::from(format!("{}.tap", socket.display()))
}

fn consumer(
    consumer: Consumer,
    tap: &Path,
    medium: &Medium,
    processors: Processors,
) -> Result<Option<Running>> {
    let mode = match consumer {
        Consumer::None => return Ok(None),
        Consumer::Everything => "all".to_owned(),
        Consumer::Groups => "groups".to_owned(),
        Consumer::Hundredth => format!("below={}", medium.bytes / 512 / 100),
        Consumer::Histograms => "histograms".to_owned(),
    };
    let mut command = example("tapdisk_take");
    command.arg(tap).arg(mode);
    let command = pinned(&command, processors.listener);
    let mut consumer = Running::start(command, "tapdisk_take")?;
    // It connects immediately; if it could not, it has exited by then.
    thread::sleep(Duration::from_millis(300));
    consumer.alive()?;
    Ok(Some(consumer))
}

/// The counts of a load.
struct Loaded {
    requests: f64,
    iops: f64,
    p50_ns: f64,
    p99_ns: f64,
}

fn load(front: Front, socket: &Path, options: Load, processors: Processors) -> Result<Loaded> {
    match front {
        Front::Vhost => vhost_load(socket, options, processors),
        Front::Nbd => fio(socket, options, processors),
    }
}

fn vhost_load(socket: &Path, options: Load, processors: Processors) -> Result<Loaded> {
    let mut command = example("vhost_load");
    let weights = match options.operation {
        Operation::Read => ["read=1", "write=0"],
        Operation::Write => ["read=0", "write=1"],
    };
    command
        .arg(socket)
        .arg(format!("depth={}", options.depth))
        .arg(format!("seconds={}", options.seconds))
        .args(weights);
    let report = json(&mut pinned(&command, processors.load))?;
    Ok(Loaded {
        requests: figure(&report["requests"])?,
        iops: figure(&report["iops"])?,
        p50_ns: figure(&report["p50_ns"])?,
        p99_ns: figure(&report["p99_ns"])?,
    })
}

fn fio(socket: &Path, options: Load, processors: Processors) -> Result<Loaded> {
    let mut command = Command::new("fio");
    let (rw, part) = match options.operation {
        Operation::Read => ("randread", "read"),
        Operation::Write => ("randwrite", "write"),
    };
    command.args(["--name=load", "--ioengine=nbd", "--bs=4k", "--time_based"]);
    command.arg(format!("--rw={rw}"));
    command.args(["--output-format=json", "--thread"]);
    command.arg(format!("--uri=nbd+unix:///?socket={}", socket.display()));
    command
        .arg(format!("--iodepth={}", options.depth))
        .arg(format!("--runtime={}", options.seconds));
    let report = json(&mut pinned(&command, processors.load))?;
    let part = &report["jobs"][0][part];
    let percentiles = &part["clat_ns"]["percentile"];
    Ok(Loaded {
        requests: figure(&part["total_ios"])?,
        iops: figure(&part["iops"])?,
        p50_ns: figure(&percentiles["50.000000"])?,
        p99_ns: figure(&percentiles["99.000000"])?,
    })
}

fn json(command: &mut Command) -> Result<Value> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| shown.clone())?;
    if !output.status.success() {
        bail!(
            "{shown}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    // fio first prints remarks, such as the list of a server's exports.
    let begin = output.stdout.iter().position(|byte| *byte == b'{');
    serde_json::from_slice(&output.stdout[begin.unwrap_or(0)..]).context(shown)
}

fn figure(value: &Value) -> Result<f64> {
    value.as_f64().context("a report lacks a figure")
}

/// A program that runs during the load, and is killed at the end of the measurement.
struct Running {
    child: Child,
    name: &'static str,
}

impl Running {
    fn start(mut command: Command, name: &'static str) -> Result<Running> {
        let command = command.stdout(Stdio::piped()).stdin(Stdio::piped());
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Running { child, name })
    }

    fn until_listening(&mut self, socket: &Path) -> Result<()> {
        let deadline = Instant::now() + START_TIME;
        // Some back ends would accept a connection as a client, so the existence of the file is
        // checked.
        while !socket.exists() {
            self.alive()?;
            if Instant::now() > deadline {
                bail!("{} does not listen at {}", self.name, socket.display());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended before its time: {status}", self.name),
        }
    }

    fn spent_ns(&self) -> Result<f64> {
        process_ns(self.child.id())
    }

    /// Ends a consumer; returns the number of events that it did not receive, from its line
    /// `received N lost N`.
    fn lost(mut self) -> Result<f64> {
        self.alive()?;
        drop(self.child.stdin.take());
        let mut printed = String::new();
        let output = self.child.stdout.as_mut().context("its output is ours")?;
        output.read_to_string(&mut printed)?;
        self.child.wait()?;
        let lost = printed
            .trim()
            .rsplit(' ')
            .next()
            .and_then(|n| n.parse().ok());
        lost.with_context(|| format!("{} printed {printed:?}", self.name))
    }

    fn end(mut self) -> Result<()> {
        self.alive()?;
        execute(Command::new("kill").args(["-TERM", &self.child.id().to_string()]))?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only after a failure: a program that ended normally was waited for.
        if matches!(self.child.try_wait(), Ok(None)) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}
