//! The engine's half: rows per second and core for five queries, over 5,000,000 generated events.

use anyhow::Result;

use crate::{cargo, execute};

/// Builds and runs the engine's own benchmark, which prints its table.
pub fn run() -> Result<()> {
    println!(
        "\n== the engine: one core, 5,000,000 events, 200,000 of them a second of stream time\n"
    );
    execute(cargo().args([
        "run",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "weir-query",
        "--example",
        "engine_bench",
    ]))
}
