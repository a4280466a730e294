//! `cargo xtask experiments`: experiments 1 to 3 of the thesis (Benke 2009, chapter 4), done again on
//! this machine, and docs/experiments.md written with its figures beside ours.
//!
//! A VM is a program that copies at a fixed rate on a disk of its own, so that the work done is the same
//! in every configuration, as it was in the thesis, and processor time is what differs. Configurations of
//! an experiment take turns, so that a noisy neighbour hits all alike.

mod copying;
mod figures;
mod local;
mod page;
mod scripts;
mod time_used;

use anyhow::{Result, bail};

use crate::{cargo, execute, is_root, packages, root};
pub use figures::{Figure, Row};

/// How long and how often each configuration is measured.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Times that each configuration has its turn.
    pub runs: usize,
    /// Seconds that are measured each time.
    pub seconds: u32,
}

/// What an experiment found.
pub struct Findings {
    /// What is measured of each configuration, as columns.
    pub columns: Vec<&'static str>,
    /// One a configuration.
    pub rows: Vec<Row>,
}

/// An experiment of the thesis.
pub struct Experiment {
    /// Its number there.
    pub number: u32,
    /// Its title there.
    pub title: &'static str,
    /// What the thesis did and found, in words of our own with its figures.
    pub thesis: &'static str,
    /// What is the same here and what is not.
    pub here: &'static str,
    /// Does it.
    pub run: fn(Pace) -> Result<Findings>,
}

const USAGE: &str = "usage: cargo xtask experiments [1..3] [--runs N] [--seconds N] [--out FILE]";

/// Every experiment, in the thesis's order.
static EXPERIMENTS: &[&Experiment] = &[&local::TRACING, &local::COMPLEXITY, &local::PARALLEL];

/// The chore.
pub fn run(args: &[String]) -> Result<()> {
    let mut pace = Pace {
        runs: 5,
        seconds: 5,
    };
    let mut wanted: Vec<u32> = Vec::new();
    let mut out = root().join("docs/experiments.md");
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--runs" => pace.runs = number(arg, rest.next())?.max(2) as usize,
            "--seconds" => pace.seconds = number(arg, rest.next())?.max(1),
            "--out" => match rest.next() {
                Some(path) => out = path.into(),
                None => bail!("--out needs a file"),
            },
            _ => match arg.parse().ok() {
                Some(n) if EXPERIMENTS.iter().any(|e| e.number == n) => wanted.push(n),
                _ => bail!("unknown argument {arg}; {USAGE}"),
            },
        }
    }
    if !is_root() {
        bail!("needs root: it makes loop devices and network namespaces, and attaches probes");
    }
    packages::ensure(packages::BUILD)?;
    packages::ensure(&["fio", "iproute2"])?;
    execute(cargo().args(["build", "--release", "--locked", "--package", "weir"]))?;
    let mut done = Vec::new();
    for experiment in EXPERIMENTS {
        if wanted.is_empty() || wanted.contains(&experiment.number) {
            println!(
                "\n== experiment {}: {}",
                experiment.number, experiment.title
            );
            let findings = (experiment.run)(pace)?;
            print!("{}", page::table(&findings));
            done.push((*experiment, findings));
        }
    }
    match wanted.is_empty() {
        true => page::write(&out, pace, &done),
        false => Ok(()),
    }
}

fn number(option: &str, value: Option<&String>) -> Result<u32> {
    match value.and_then(|v| v.parse().ok()) {
        Some(n) => Ok(n),
        None => bail!("{option} needs a whole number"),
    }
}
