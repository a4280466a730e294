//! Simulations of fleets: the agent and the monitor on a simulated network, by a simulated clock,
//! in one thread; and a load test of a monitor with many synthetic agents ([`load_test`]).
//!
//! A run is generated from a seed: hosts with rows and inaccurate clocks, queries with every
//! placement strategy, and faults. [`network`] delays and reorders messages, partitions hosts and
//! breaks connections; agents end, are killed and restart; the monitor is killed and resumes from
//! its checkpoint. The simulation runs the product's code: [`weir_agent::AgentCore`],
//! [`weir_wire`]'s outbox, encoding and intake, [`weir_monitor::Monitor`]. Only sockets, threads,
//! clocks and taps are replaced.
//!
//! Afterwards [`verdict`] compares each query's result with that of one engine that received every
//! delivered row, and the losses that the monitor reports with the rows that are missing.
//!
//! ```text
//! cargo test --workspace --test seeds                 # some seeds
//! WEIR_SEEDS=1000 cargo test --workspace --test seeds # more of them
//! WEIR_SEED=17 cargo test --workspace --test seeds    # this one, which a failure prints
//! ```
//!
//! # What it does not cover
//!
//! - The loops of the uplink, the server and the live agent, which have threads and sockets.
//! - Where exact results are required, no connection breaks and no monitor is killed before the
//!   monitor has received and saved which channels a new process runs: it does not wait for an
//!   unknown process, and counts its rows as late.
//! - Where agents and monitor are killed, agents have room for all messages; a row that is in a
//!   result may also be counted as lost.
//!
//! # Deliberate errors that it finds
//!
//! | error in the monitor | found by seed |
//! | --- | --- |
//! | a message that is received again is processed again | 0 |
//! | messages are acknowledged before the checkpoint that needs them is saved | 3 |
//! | results that were shown before a restart are shown again | 3 |
//! | rows that a killed process reported and did not deliver are not counted | 0, 4 |
//!
//! It does not find a recovery that advances time before agents have sent their messages again: the
//! monitor waits for agents in any case in the scenarios whose results are compared.
//!
//! The seed determines the run. Only the iteration order of hash maps and the monitor's random
//! identity differ between two runs of a seed; no result depends on them.

// The shared test code of weir-query contains more than is needed here.
#[allow(dead_code)]
mod grammar;
mod host;
pub mod load_test;
mod network;
mod process;
mod queries;
mod scenario;
mod server;
mod verdict;
mod world;

use weir_model::Nanos;

pub use scenario::{FaultKind, Scenario};
pub use verdict::SimulationReport;
pub use world::FaultCounts;

/// A millisecond.
pub const MS: Nanos = 1_000_000;

/// A second.
pub const SECOND: Nanos = 1_000 * MS;

/// When simulations begin.
pub const START: Nanos = 1_700_000_000 * SECOND;

/// Runs the simulation of a seed and checks its results.
///
/// # Errors
/// A description of the first result or loss that differs from the expected one.
pub fn run(seed: u64) -> Result<SimulationReport, String> {
    let mut world = world::World::new(seed);
    world.run();
    verdict::check(&world)
}
