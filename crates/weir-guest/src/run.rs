//! Runs a program of the host's to its end.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs a command; its first line of output, or its complaint.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}", args.join(" "), said.trim());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said.lines().next().unwrap_or_default().trim().to_owned())
}
