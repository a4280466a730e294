//! `cargo xtask bench`: the costs of weir, measured on this machine and printed with their bounds.
//!
//! `cargo xtask bench engine`, `.. tap`, `.. hist`, `.. tapdisk`, `.. top`, `.. workload`, `..
//! wire`, `.. startup` and `.. recordings [--requests N]` run one part. `.. --peers` compares the
//! engine with Esper and Flink, and the tap with the tools that a user would take instead, all of
//! which it installs; `.. tap --peers` the tap only.
//! Ratios are computed within one run, from rounds that include every configuration, because the
//! performance of machines drifts. Bounds are printed for comparison and never fail the run.

mod disk;
mod engine;
mod hist;
mod peers;
mod recordings;
mod startup;
mod tap;
mod tapdisk;
mod top;
mod wire;
mod workload;

use std::process::Command;

pub use tap::binary;

use anyhow::{Result, bail};

use crate::{build_weir, cargo, execute, number, packages};

/// The duration and number of measurements of each configuration.
pub struct Pace {
    /// Rounds, each with every configuration.
    pub rounds: usize,
    /// Seconds of load per configuration and round.
    pub seconds: u32,
}

/// Runs the benchmarks.
pub fn run(args: &[String]) -> Result<()> {
    let mut pace = Pace {
        rounds: 3,
        seconds: 3,
    };
    let mut parts = Vec::new();
    let mut with_peers = false;
    let mut requests = 5_000_000;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "engine" | "tap" | "hist" | "tapdisk" | "top" | "workload" | "wire" | "startup"
            | "recordings" => parts.push(arg.as_str()),
            "--peers" => with_peers = true,
            "--rounds" => pace.rounds = number(arg, rest.next())?,
            "--requests" => requests = number(arg, rest.next())?,
            "--seconds" => pace.seconds = number(arg, rest.next())?,
            other => bail!(
                "unknown argument {other}; usage: cargo xtask bench [engine|tap|hist|tapdisk|top|workload|wire|startup|recordings] [--peers] [--rounds N] [--seconds N] [--requests N]"
            ),
        }
    }
    packages::ensure(packages::BUILD)?;
    if parts.is_empty() && with_peers {
        parts = vec!["engine", "tap"];
    }
    let wanted = |part| parts.contains(&part) || parts.is_empty();
    if wanted("engine") {
        match with_peers {
            true => peers::run(&pace)?,
            false => engine::run(&pace)?,
        }
    }
    if wanted("tap") {
        build_weir("release")?;
        tap::run(&pace, with_peers)?;
    }
    if wanted("hist") {
        hist::run(&pace)?;
    }
    if wanted("tapdisk") {
        tapdisk::run(&pace)?;
    }
    if wanted("top") {
        build_weir("release")?;
        top::run(&pace)?;
    }
    if wanted("workload") {
        workload::run()?;
    }
    if wanted("wire") {
        wire::run()?;
    }
    if wanted("startup") {
        build_weir("release")?;
        startup::run(&pace)?;
    }
    if wanted("recordings") {
        build_weir("release")?;
        recordings::run(&pace, requests)?;
    }
    Ok(())
}

/// Builds and runs an example of a crate.
fn example(package: &str, name: &str) -> Result<()> {
    execute(&mut example_command(package, name))
}

/// The command that builds and runs an example of a crate.
fn example_command(package: &str, name: &str) -> Command {
    let mut command = cargo();
    command.args(["run", "--release", "--locked", "--quiet"]);
    command.args(["--package", package, "--example", name]);
    command
}

/// The minimum, the median and the maximum of some figures.
pub fn spread(mut figures: Vec<f64>) -> (f64, f64, f64) {
    assert!(!figures.is_empty(), "at least one round");
    figures.sort_by(f64::total_cmp);
    (
        figures[0],
        figures[figures.len() / 2],
        figures[figures.len() - 1],
    )
}
