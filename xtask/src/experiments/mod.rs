//! `cargo xtask experiments`: experiments 1 to 6 of the thesis (Benke 2009, chapter 4), repeated on
//! this machine, and docs/experiments.md with the figures of both.
//!
//! Findings are kept in `target/experiments`, a JSON file each. `cargo xtask experiments 5` repeats
//! one of them and rewrites the page, if the others are known.
//!
//! A VM is a program that copies at a fixed rate on a disk of its own, so that the work is the same
//! in every configuration, as in the thesis, and only the processor time differs. Configurations of
//! an experiment alternate, so that interference affects all of them equally.
//!
//! `cargo xtask experiments schedulers` is of another paper, and `scale` of fleets that one monitor
//! does not serve; both have a page of their own. `.. failover` prints how long results pause when
//! the leader of two monitors fails.

mod copying;
mod database;
mod distributed;
mod failover;
mod field;
mod figures;
mod kept;
mod local;
mod page;
mod scale;
mod schedulers;
mod scripts;

use anyhow::{Result, bail};

use crate::{build_weir, is_root, number, packages, root};
use kept::Kept;

pub use figures::{Figure, Row};

/// The number and duration of measurements of each configuration.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The number of measurements of each configuration.
    pub runs: usize,
    /// The seconds of each measurement.
    pub seconds: u32,
}

/// The findings of an experiment.
pub struct Findings {
    /// The columns: the figures of each configuration.
    pub columns: Vec<String>,
    /// One for each configuration.
    pub rows: Vec<Row>,
    /// The conclusion, as a sentence; may be empty.
    pub conclusion: String,
}

impl Findings {
    /// Findings without a conclusion.
    pub fn new(columns: &[&str], rows: Vec<Row>) -> Findings {
        Findings {
            columns: columns.iter().map(|c| (*c).to_owned()).collect(),
            rows,
            conclusion: String::new(),
        }
    }
}

/// An experiment of the thesis.
pub struct Experiment {
    /// Its number in the thesis.
    pub number: u32,
    /// Its title in the thesis.
    pub title: &'static str,
    /// The method and findings of the thesis, summarised with its figures.
    pub thesis: &'static str,
    /// The differences of this experiment from the thesis.
    pub here: &'static str,
    /// Runs it.
    pub run: fn(Pace) -> Result<Findings>,
}

const USAGE: &str = "usage: cargo xtask experiments [1..6] [--runs N] [--seconds N] [--out FILE]\n\
                     or: cargo xtask experiments schedulers [--runs N] [--out FILE]\n\
                     or: cargo xtask experiments scale [--agents N,N..] [--seconds N] [--out FILE]\n\
                     or: cargo xtask experiments failover [--runs N]";

/// Every experiment, in the thesis's order.
static EXPERIMENTS: &[&Experiment] = &[
    &local::TRACING,
    &local::COMPLEXITY,
    &local::PARALLEL,
    &distributed::OFFLOADING,
    &distributed::FILTERING,
    &distributed::SCALING,
];

/// Runs the experiments.
pub fn run(args: &[String]) -> Result<()> {
    if let Some((first, rest)) = args.split_first()
        && first == "schedulers"
    {
        return schedulers::run(rest);
    }
    if let Some((first, rest)) = args.split_first()
        && first == "scale"
    {
        return scale::run(rest);
    }
    if let Some((first, rest)) = args.split_first()
        && first == "failover"
    {
        return failover::run(rest);
    }
    let mut pace = Pace {
        runs: 4,
        seconds: 4,
    };
    let mut wanted: Vec<u32> = Vec::new();
    let mut out = root().join("docs/experiments.md");
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--runs" => pace.runs = number::<usize>(arg, rest.next())?.max(2),
            "--seconds" => pace.seconds = number::<u32>(arg, rest.next())?.max(1),
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
        bail!("requires root: it creates loop devices and network namespaces, and attaches probes");
    }
    packages::ensure(packages::BUILD)?;
    packages::ensure(&["iproute2"])?;
    build_weir("release")?;
    copying::build()?;
    let mut failed = Vec::new();
    for experiment in EXPERIMENTS {
        let Experiment { number, title, .. } = experiment;
        if wanted.is_empty() || wanted.contains(number) {
            println!("\n== experiment {number}: {title}");
            // After a failure the others still run.
            if let Err(error) = experiment.done(pace) {
                eprintln!("experiment {number}: {error:#}");
                failed.push(number.to_string());
            }
        }
    }
    write_page(&out)?;
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("failed: experiment {}", failed.join(", ")),
    }
}

impl Experiment {
    /// Runs it, prints and stores its findings.
    fn done(&self, pace: Pace) -> Result<()> {
        let findings = (self.run)(pace)?;
        print!("{}", page::shown(&findings));
        kept::keep(self.number, &Kept { pace, findings })
    }
}

/// Writes the page if all experiments have been done, now or earlier.
fn write_page(path: &std::path::Path) -> Result<()> {
    let mut done = Vec::new();
    for experiment in EXPERIMENTS {
        match kept::known(experiment.number) {
            Some(kept) => done.push((*experiment, kept)),
            None => {
                println!(
                    "\nnot written: {}, because experiment {} has not been run",
                    path.display(),
                    experiment.number
                );
                return Ok(());
            }
        }
    }
    page::write(path, &done)
}
