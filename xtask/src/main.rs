//! Repository tasks: set-up, tests, the demonstration, benchmarks, the BPF object and the reference
//! pages.
//!
//! `cargo xtask` lists them. Each is a file in this directory and a line in [`TASKS`].

mod bench;
mod bpf;
mod demo;
mod experiments;
mod fuzz;
mod guest;
mod package;
mod packages;
mod pictures;
mod proto;
mod simulate;
mod soak;
mod test;
mod time_used;

use std::process::{Command, ExitCode};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use weir_testing::is_root;
use weir_testing::repository::root;

/// A task: its name, its description, and its function.
type Task = (&'static str, &'static str, fn(&[String]) -> Result<()>);

/// Every task, in the order of the help.
const TASKS: &[Task] = &[
    (
        "demo",
        "build weir and query the I/O of two guests, live (--keep: leave them running for the tutorial)",
        demo::run,
    ),
    (
        "test",
        "install what the tests need and run them (--all: the heavy ones completely; --kernels: every kernel)",
        test::run,
    ),
    (
        "bench",
        "measure what weir costs, beside its bounds and its peers",
        bench::run,
    ),
    (
        "experiments",
        "do the thesis's experiments again and write docs/experiments.md",
        experiments::run,
    ),
    (
        "simulate",
        "load a monitor with many synthetic agents, and measure it",
        simulate::run,
    ),
    (
        "soak",
        "run everything under load and faults for a long time, and check counts and resources",
        soak::run,
    ),
    (
        "fuzz",
        "check and run ten million random and damaged queries, or as many as the argument states",
        fuzz::run,
    ),
    (
        "guest",
        "build the small Linux guests that tests run in QEMU, if they are not there yet (--all: every kernel)",
        guest::run,
    ),
    (
        "pictures",
        "make the pictures of docs/workloads.md anew, by doing each workload",
        pictures::run,
    ),
    (
        "package",
        "write packages, archives, images, the SBOM and checksums of a release to target/package",
        package::run,
    ),
    (
        "packages",
        "install what building and testing need, and nothing else",
        packages::run,
    ),
    (
        "bpf",
        "compile the kernel programs into the object that the repository holds (--check: compare)",
        bpf::run,
    ),
    (
        "proto",
        "generate the messages of the protocol from its .proto files (--check: compare)",
        proto::run,
    ),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let task = args
        .first()
        .and_then(|name| TASKS.iter().find(|(n, ..)| n == name));
    let Some((name, _, run)) = task else {
        eprintln!("usage: cargo xtask TASK [OPTIONS]\n");
        for (name, does, _) in TASKS {
            eprintln!("  {name:<11} {does}");
        }
        return ExitCode::from(2);
    };
    match run(&args[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The cargo that runs this program.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command to its end; an exit code other than 0 is an error that names the command.
fn execute(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown} ended with {status}");
    }
    Ok(())
}

/// Builds the program with a profile of `Cargo.toml`.
fn build_weir(profile: &str) -> Result<()> {
    execute(cargo().args([
        "build",
        "--locked",
        "--package",
        "weir",
        "--profile",
        profile,
    ]))
}

/// The numeric value of a command-line option.
fn number<N: FromStr>(option: &str, value: Option<&String>) -> Result<N> {
    match value.and_then(|v| v.parse().ok()) {
        Some(n) => Ok(n),
        None => bail!("{option} needs a whole number"),
    }
}
