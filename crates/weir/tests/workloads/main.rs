//! Reports of `weir characterise` on real workloads on a real block device, compared with the known
//! properties of the workloads.
//!
//! Each workload runs on its own loop device and is recorded live. The assertions do not depend on
//! the speed of the host: they concern the order and the size of requests or, between neighbours on
//! one disk, the effects of a disk with a known rate. The tests need root, BPF and the programs of
//! the workloads; without them each test logs that it is skipped. They run one at a time.

mod kinds;
mod neighbours;
mod page;
mod report;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_testing::{run, skip};

/// Allows one test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// The binary.
fn weir() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_weir"))
}

/// Waits for the turn of `test`; logs the reason and returns `None` where live I/O cannot be
/// observed.
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
