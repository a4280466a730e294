//! The workload's part: the cost of each analysis of a disk's requests.

use anyhow::Result;

use super::example;

/// Builds and runs the workload crate's own benchmark, which prints its table.
pub fn run() -> Result<()> {
    println!("\n== the workload: one core, 1,000,000 requests and their ends\n");
    example("weir-workload", "workload_bench")
}
