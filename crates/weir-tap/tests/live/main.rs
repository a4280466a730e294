//! The live tap compared with independent counters: real probes on a loop device created by the
//! test, real load by fio, and the counts of fio and of the kernel (`/proc/diskstats`).
//!
//! Needs root, BPF and fio; otherwise each test prints that it was skipped. The tests run one at a
//! time, since they observe the same machine.

mod counts;
mod folds;
mod groups_by_definition;
mod hist;
mod images;
mod life;
mod load;
mod order;
mod owners;
mod selections;
mod stacked;
mod times;
mod traps;
mod watch;

use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_testing::{LoopDisk, run};

pub use weir_testing::skip;

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// The resources of a live test. The device is dropped before the lock.
pub struct Bench {
    /// The test's own device.
    pub disk: LoopDisk,
    _turn: MutexGuard<'static, ()>,
}

/// A device for `test`, after the previous test has ended; `None`, with a printed reason, if the
/// test cannot run.
pub fn bench(test: &str, mebibytes: u64) -> Option<Bench> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(why) = run("fio", &["--version"]) {
        return skip(test, why);
    }
    if run("id", &["-u"]).is_ok_and(|id| id != "0") {
        return skip(test, "only root can attach programs and make devices");
    }
    match LoopDisk::new(mebibytes) {
        Ok(disk) => Some(Bench { disk, _turn: turn }),
        Err(why) => skip(test, why),
    }
}
