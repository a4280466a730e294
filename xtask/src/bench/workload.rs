//! The workload's part: what it costs to follow a disk's requests, for each analysis.

use anyhow::Result;

use crate::{cargo, execute};

/// Builds and runs the workload crate's own benchmark, which prints its table.
pub fn run() -> Result<()> {
    println!("\n== the workload: one core, 1,000,000 requests and their ends\n");
    execute(cargo().args([
        "run",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "weir-workload",
        "--example",
        "workload_bench",
    ]))
}
