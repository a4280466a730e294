//! How long a user waits: from the start of a command to its first row, or to its end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::disk::Disk;
use super::tap::{binary, with_tracefs};
use super::{Pace, spread};
use crate::{is_root, packages};

/// Requests per second of the disk: one each millisecond, so that the next one does not add to the
/// wait.
const RATE_IOPS: u32 = 1_000;

/// Starts of each command per round.
const STARTS: usize = 10;

/// A request of any disk, as a line of bpftrace.
const FIRST_REQUEST: &str =
    "tracepoint:block:block_rq_complete { printf(\"%d\\n\", args->sector); }";

/// A command whose first line, or end, a user waits for.
struct Subject {
    name: &'static str,
    /// Milliseconds.
    bound: Option<f64>,
    /// The line to wait for, from 1; 0 for the end.
    line: usize,
    command: fn(&Disk) -> Command,
}

const SUBJECTS: &[Subject] = &[
    Subject {
        name: "true: the start of a process",
        bound: None,
        line: 0,
        command: |_| Command::new("true"),
    },
    Subject {
        name: "weir --help",
        bound: Some(10.0),
        line: 0,
        command: |_| {
            let mut command = binary();
            command.arg("--help");
            command
        },
    },
    Subject {
        name: "weir query \"select op from IO\"",
        bound: Some(150.0),
        line: 2,
        command: |disk| query(disk, "select op from IO"),
    },
    Subject {
        name: "weir query \"select * from IO\"",
        bound: Some(150.0),
        line: 2,
        command: |disk| query(disk, "select * from IO"),
    },
    Subject {
        name: "bpftrace: a line for each request",
        bound: None,
        // The first line reports the number of probes.
        line: 2,
        command: |_| with_tracefs("bpftrace", &["-e", FIRST_REQUEST]),
    },
];

fn query(disk: &Disk, text: &str) -> Command {
    let mut command = binary();
    command.args(["query", "--format", "csv", "--device", &disk.device, text]);
    command
}

/// Measures and prints the table.
pub fn run(pace: &Pace) -> Result<()> {
    println!("\n== From the start of a command to its first row, or to its end\n");
    if !is_root() || !packages::exists("fio") {
        println!("skipped: needs root, BPF and fio");
        return Ok(());
    }
    let disk = Disk::new()?;
    let mut subjects: Vec<&Subject> = SUBJECTS.iter().collect();
    if !packages::exists("bpftrace") {
        println!("bpftrace is not installed; `cargo xtask bench --peers` installs it");
        subjects.retain(|subject| !subject.name.starts_with("bpftrace"));
    }
    let mut waits: Vec<Vec<f64>> = vec![Vec::new(); subjects.len()];
    for _ in 0..pace.rounds {
        for (subject, waits) in subjects.iter().zip(&mut waits) {
            waits.extend(turn(&disk, subject)?);
        }
    }
    println!("{:<36} {:>26} {:>6}", "", "ms [min..max]", "bound");
    for (subject, waits) in subjects.iter().zip(waits) {
        let (least, median, most) = spread(waits);
        let bound = subject.bound.map_or(String::new(), |ms| format!("{ms:.0}"));
        let range = format!("[{least:.1}..{most:.1}]");
        println!("{:<36} {median:>10.1} {range:>15} {bound:>6}", subject.name);
    }
    println!("\n{RATE_IOPS} requests per second on a loop device; medians of all starts");
    Ok(())
}

/// The waits for some starts, in milliseconds.
fn turn(disk: &Disk, subject: &Subject) -> Result<Vec<f64>> {
    // Longer than the starts take.
    let mut load = disk
        .command(60, Some(RATE_IOPS))
        .stdout(Stdio::null())
        .spawn()?;
    let waits = (0..STARTS).map(|_| wait(disk, subject)).collect();
    load.kill()?;
    load.wait()?;
    waits
}

/// The wait for one start, in milliseconds.
fn wait(disk: &Disk, subject: &Subject) -> Result<f64> {
    let mut command = (subject.command)(disk);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let started = Instant::now();
    let mut child = command.spawn().context(subject.name)?;
    let mut output = BufReader::new(child.stdout.take().context("no output")?);
    let mut line = String::new();
    for _ in 0..subject.line {
        line.clear();
        if output.read_line(&mut line)? == 0 {
            bail!("{}: ended before its first row", subject.name);
        }
    }
    if subject.line == 0 {
        std::io::copy(&mut output, &mut std::io::sink())?;
        child.wait()?;
    }
    let waited = started.elapsed().as_secs_f64() * 1e3;
    if subject.line > 0 {
        child.kill()?;
        child.wait()?;
    }
    Ok(waited)
}
