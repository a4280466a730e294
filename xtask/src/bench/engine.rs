//! The engine's part: rows per second and core for five queries over 5,000,000 generated events,
//! beside the same queries written by hand, and what an agent sends of them.

use anyhow::Result;

use super::{Pace, example, example_command};
use crate::execute;

/// Builds and runs the engine's own benchmark, which prints its table.
pub fn run(pace: &Pace) -> Result<()> {
    println!(
        "\n== the engine: one core, 5,000,000 events, 200,000 of them a second of stream time\n"
    );
    let mut bench = example_command("weir-query", "engine_bench");
    execute(bench.env("ROUNDS", pace.rounds.to_string()))?;
    println!("\n== what an agent sends of the same events, by the way in which a query is cut\n");
    example("weir", "wire_bytes")
}
