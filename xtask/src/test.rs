//! `cargo xtask test`: installs what the tests need, runs them, and reports at the end what was
//! skipped and what was retried. With `--all` the heavy tests run completely; otherwise a small
//! version of each (docs/testing.md).
//!
//! Tests that need root, BPF, a tool or the sample data skip with a line that begins with
//! `skipped:` if these are not available. A test whose precondition did not hold, since other
//! processes used the processors, is retried with a line that begins with `tried again:`. Both are
//! collected and printed once more at the end, so that skipped tests are not mistaken for passed
//! ones.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use weir_testing::EXTENT_VARIABLE;

use crate::{cargo, guest, packages};

/// Runs `cargo test` on the whole workspace with `args`, except `--all`, appended.
pub fn run(args: &[String]) -> Result<()> {
    let is_full = args.first().is_some_and(|arg| arg == "--all");
    let args = &args[usize::from(is_full)..];
    packages::run(&[])?;
    if let Err(why) = guest::run(&[]) {
        eprintln!("no guest, so tests that need one will be skipped: {why:#}");
    }
    let mut tests = cargo();
    if is_full {
        tests.env(EXTENT_VARIABLE, "all");
    }
    let mut tests = tests
        .args(["test", "--locked", "--workspace", "--no-fail-fast"])
        .args(args)
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start cargo test")?;
    let (mut skipped, mut retried) = (Vec::new(), Vec::new());
    let stderr = BufReader::new(tests.stderr.take().expect("stderr is piped"));
    for line in stderr.lines() {
        let line = line?;
        eprintln!("{line}");
        if line.starts_with("skipped:") {
            skipped.push(line);
        } else if line.starts_with("tried again:") {
            retried.push(line);
        }
    }
    let status = tests.wait()?;
    skipped.sort();
    skipped.dedup();
    match skipped.len() {
        0 => println!("nothing was skipped"),
        n => println!(
            "{n} tests or parts of tests were skipped:\n{}",
            skipped.join("\n")
        ),
    }
    match retried.len() {
        0 => println!("nothing was retried"),
        n => println!("{n} retries:\n{}", retried.join("\n")),
    }
    if !status.success() {
        bail!("some tests failed");
    }
    Ok(())
}
