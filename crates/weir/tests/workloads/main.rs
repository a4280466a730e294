//! What `weir characterise` says of real work on a real block device, held against what the work
//! is.
//!
//! Each workload runs on a loop device of its own and is recorded live. What is asserted does not
//! depend on how fast the host is: it is the order and the size of requests, or, between neighbours
//! on one disk, what a disk of a known rate makes of them. The tests need root, BPF and the
//! programs that do the work; without them each says loudly that it was skipped. They run one at a
//! time.

mod kinds;
mod neighbours;
mod page;
mod report;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_testing::{run, skip};

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// The binary.
fn weir() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_weir"))
}

/// Waits for the turn of `test`; `None`, said aloud, where this host cannot be watched.
fn turn(test: &str) -> Option<MutexGuard<'static, ()>> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(why) = run(env!("CARGO_BIN_EXE_weir"), &["doctor"]) {
        return skip(test, format!("live I/O cannot be observed here: {why:#}"));
    }
    if run("id", &["-u"]).is_ok_and(|id| id != "0") {
        return skip(test, "only root can make devices");
    }
    Some(turn)
}
