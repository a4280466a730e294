//! `cargo xtask fuzz`: random and damaged queries, optimized but with every check of a debug build.

use anyhow::Result;

use crate::{cargo, execute, packages};

/// The number of queries without an argument.
const QUERIES: &str = "10000000";

/// Runs the test with `args`: the number of queries.
pub fn run(args: &[String]) -> Result<()> {
    packages::ensure(packages::BUILD)?;
    let queries = args.first().map_or(QUERIES, String::as_str);
    let mut command = cargo();
    // In a directory of its own: other flags would make the next release build from the start.
    command.args([
        "test",
        "--locked",
        "--release",
        "--target-dir",
        "target/fuzz",
    ]);
    command.args(["--package", "weir-query", "--test", "semantics", "damaged"]);
    command.args(["--", "--nocapture"]);
    command.env("WEIR_QUERIES", queries);
    for (option, value) in [
        ("LTO", "off"),
        ("DEBUG_ASSERTIONS", "true"),
        ("OVERFLOW_CHECKS", "true"),
    ] {
        command.env(format!("CARGO_PROFILE_RELEASE_{option}"), value);
    }
    execute(&mut command)
}
