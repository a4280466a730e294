//! The engine's part: rows per second and core for five queries, over 5,000,000 generated events,
//! and what an agent sends of them.

use anyhow::Result;

use super::example;

/// Builds and runs the engine's own benchmark, which prints its table.
pub fn run() -> Result<()> {
    println!(
        "\n== the engine: one core, 5,000,000 events, 200,000 of them a second of stream time\n"
    );
    example("weir-query", "engine_bench")?;
    println!("\n== what an agent sends of the same events, by the way in which a query is cut\n");
    example("weir", "wire_bytes")
}
