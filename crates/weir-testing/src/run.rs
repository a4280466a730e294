//! Runs a program of the host.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command, without input; returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("{shown} ended with {}: {}", output.status, message.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{shown}: not UTF-8"))
}

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
