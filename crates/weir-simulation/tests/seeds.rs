//! Seeds of the simulation.

use std::collections::BTreeSet;
use std::panic;

use weir_simulation::{SimulationReport, run};
use weir_testing::is_full;

/// The number of seeds unless `WEIR_SEEDS` is set; a debug build takes half a minute.
const SEEDS: u64 = 60;

/// The same with `cargo xtask test --all`.
const SEEDS_ALL: u64 = 500;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// Runs a seed; the error has the command that runs it again.
fn report(seed: u64) -> Result<SimulationReport, String> {
    let again = format!("WEIR_SEED={seed} cargo test --workspace --test seeds -- --nocapture");
    match panic::catch_unwind(|| run(seed)) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(error)) => Err(format!("seed {seed}: {error}\n{again}")),
        Err(_) => Err(format!("seed {seed} panicked\n{again}")),
    }
}

#[test]
fn the_fleet_gives_what_one_engine_gives_and_counts_what_is_missing() {
    let one = number("WEIR_SEED");
    let usual = if is_full() { SEEDS_ALL } else { SEEDS };
    let seeds: Vec<u64> = match one {
        Some(seed) => vec![seed],
        None => (0..number("WEIR_SEEDS").unwrap_or(usual)).collect(),
    };
    let (mut reports, mut failed) = (Vec::new(), Vec::new());
    for &seed in &seeds {
        match report(seed) {
            Ok(report) => reports.push(report),
            Err(error) => failed.push(error),
        }
    }
    let count = failed.len();
    assert!(count == 0, "{count} seeds fail\n{}", failed.join("\n\n"));
    if one.is_some() {
        println!("{reports:#?}");
    }
    if seeds.len() as u64 >= SEEDS {
        every_fault_and_strategy_occurs(&reports);
    }
}

fn every_fault_and_strategy_occurs(reports: &[SimulationReport]) {
    let sum = |of: fn(&SimulationReport) -> u64| reports.iter().map(of).sum::<u64>();
    let occurred = [
        ("cuts", sum(|r| r.faults.cuts.into())),
        ("partitions", sum(|r| r.faults.partitions.into())),
        ("agents killed", sum(|r| r.faults.agents_killed.into())),
        ("agents ended", sum(|r| r.faults.agents_ended.into())),
        ("monitors killed", sum(|r| r.faults.monitor_killed.into())),
        ("requests missing", sum(|r| r.missing)),
        ("changes", sum(|r| r.changes as u64)),
    ];
    for (what, count) in occurred {
        assert!(count >= 10, "{what}: {count}");
    }
    let too_big = sum(|r| r.too_big);
    assert!(too_big <= reports.len() as u64 / 50, "{too_big} queries");
    let ways: BTreeSet<&str> = reports.iter().flat_map(|r| &r.ways).map(|w| &**w).collect();
    assert!(ways.len() == 3, "not every placement strategy: {ways:?}");
}

#[test]
fn a_seed_reproduces() {
    for seed in 0..6 {
        let [first, second] = [(); 2].map(|()| format!("{:?}", run(seed)));
        assert_eq!(first, second, "seed {seed}");
    }
}
