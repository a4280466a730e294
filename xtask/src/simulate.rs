//! `cargo xtask simulate`: builds weir and the load test of `weir-simulation`, and runs it.

use anyhow::Result;

use crate::{build_weir, cargo, execute, packages, root};

/// Runs the load test with `args`; `--help` lists them.
pub fn run(args: &[String]) -> Result<()> {
    packages::ensure(packages::BUILD)?;
    build_weir("release")?;
    let weir = root().join("target/release/weir");
    let mut command = cargo();
    command.args(["run", "--release", "--locked", "--quiet"]);
    command.args([
        "--package",
        "weir-simulation",
        "--example",
        "simulate",
        "--",
    ]);
    execute(command.arg("--weir").arg(weir).args(args))
}
