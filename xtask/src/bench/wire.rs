//! The wire's part: the cost of rows between agents and monitor.

use anyhow::Result;

use super::example;

/// Builds and runs the wire crate's own benchmark, which prints its table.
pub fn run() -> Result<()> {
    println!("\n== the wire: one core, a million rows in words of 100 to 4,096\n");
    example("weir-wire", "wire_bench")
}
