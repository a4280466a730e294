//! The queries of two benchmarks of stream processing, Nexmark and Linear Road, adapted to CQL
//! (`tests/nexmark`, `tests/linear_road`), have the results of evaluators written for this test.
//!
//! `weir run` executes each script over generated files. An evaluator computes each query from all
//! rows up to an instant, without windows, indexes or earlier results; a relation is compared at
//! every instant, and so is a stream. `WEIR_SEED=17` generates other files.

mod linear_road;
mod nexmark;
mod output;

use std::path::Path;
use std::process::Command;

use weir_testing::Scratch;
use weir_testing::repository::root;

use output::{Cells, Output};

/// The seed of the generators.
fn seed() -> u64 {
    let seed = std::env::var("WEIR_SEED").ok();
    seed.and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// What a query has to give at an instant.
pub enum Expected<'a> {
    /// The rows of a relation.
    Relation(Box<dyn Fn(i64) -> Cells + 'a>),
    /// The rows that a stream emits.
    Stream(Box<dyn Fn(i64) -> Cells + 'a>),
}

/// A file of STREAM's format, with a line of types.
pub fn write_source(scratch: &Scratch, name: &str, types: &str, rows: &[(i64, String)]) {
    // The first type is that of the time.
    let mut text = format!("i,{types}\n");
    for (ts, row) in rows {
        text += &format!("{ts},{row}\n");
    }
    scratch.write(name, &text);
}

/// Runs a script in the folder of its sources.
pub fn run_script(scratch: &Scratch, script: &str) {
    let text = weir_testing::repository::read(script);
    scratch.write("script.cql", &text);
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["run", "script.cql"])
        .current_dir(scratch.path())
        .output()
        .expect("weir runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {message}");
    assert!(Path::new(script).is_relative() && root().join(script).is_file());
}

/// Compares the output files with what is expected at each instant; returns the differences.
pub fn compare(
    scratch: &Scratch,
    instants: std::ops::RangeInclusive<i64>,
    expected: &[(&str, Expected<'_>)],
) -> Vec<String> {
    let mut differences = Vec::new();
    for (file, expected) in expected {
        let mut output = Output::parse(&scratch.read(file));
        let mut count = 0;
        for at in instants.clone() {
            let (got, wanted) = match expected {
                Expected::Relation(rows) => (output.relation(at), rows(at)),
                Expected::Stream(rows) => (output.emitted(at), rows(at)),
            };
            count += wanted.len();
            if let Err(why) = output::agree(got, wanted) {
                differences.push(format!("{file} at {at}: {why}"));
                break;
            }
        }
        if count == 0 {
            differences.push(format!(
                "{file}: nothing was expected, so nothing is tested"
            ));
        }
    }
    differences
}
