//! `cargo xtask proto`: generates the messages of the protocol from its `.proto` files.
//!
//! With `--check` it compares instead of writing. The generator (`xtask/proto`) is not a part of
//! the workspace: other builds do not include a compiler of `.proto` files.

use anyhow::Result;

use crate::{cargo, execute, root};

/// Runs the generator.
///
/// # Errors
/// When it fails, or with `--check` a generated file differs from its source.
pub fn run(options: &[String]) -> Result<()> {
    let target = root().join("target/proto-build");
    let build = [
        "run",
        "--quiet",
        "--locked",
        "--manifest-path",
        "xtask/proto/Cargo.toml",
    ];
    execute(
        cargo()
            .args(build)
            .arg("--target-dir")
            .arg(target)
            .arg("--")
            .args(options),
    )
}
