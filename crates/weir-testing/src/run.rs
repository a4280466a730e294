//! Runs a program of the host.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs a command; returns its first line of output, or its error message.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}", args.join(" "), output.trim());
    }
    let output = String::from_utf8_lossy(&output.stdout);
    Ok(output.lines().next().unwrap_or_default().trim().to_owned())
}
