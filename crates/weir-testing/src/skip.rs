//! Tests that cannot run on this host print a line `skipped: ...`, which `cargo xtask test`
//! collects.

use std::fmt::Display;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

/// Reports that `test`, or a part of it, is skipped.
pub fn skipped(test: &str, why: impl Display) {
    report("skipped", test, why);
}

/// As [`skipped`]; `None`, for a function that returns what the test needs.
pub fn skip<T>(test: &str, why: impl Display) -> Option<T> {
    skipped(test, why);
    None
}

/// Reports that a precondition of `test` did not hold, for which it is tried again.
pub fn tried_again(test: &str, why: impl Display) {
    report("tried again", test, why);
}

/// Prints a line. Not with `eprintln!`, whose output the test runner captures. Where both streams
/// go to one file, such as a terminal, the runner has begun a line with the test's name.
fn report(what: &str, test: &str, why: impl Display) {
    let number = |stream: BorrowedFd| rustix::fs::fstat(stream).map(|file| file.st_ino);
    let is_shared = number(std::io::stdout().as_fd()) == number(std::io::stderr().as_fd());
    let start = if is_shared { "\n" } else { "" };
    let line = format!("{start}{what}: {test}: {why:#}\n");
    let written = std::io::stderr().write_all(line.as_bytes());
    written.expect("standard error is open");
}

/// True if this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
