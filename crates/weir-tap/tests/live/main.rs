//! The live tap against the truth: real probes on a loop device made here, real load by fio, counts
//! held against fio's own and the kernel's (`/proc/diskstats`).
//!
//! Needs root, BPF and fio; without them each test says loudly that it was skipped. The tests run
//! one at a time: they look at one machine.

mod counts;
mod folds;
mod hist;
mod images;
mod life;
mod load;
mod owners;
mod selections;
mod stacked;
mod times;
mod traps;
mod watch;

use std::fmt::Display;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_guest::{LoopDisk, run};

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// What a live test holds while it runs. The device goes before the turn.
pub struct Bench {
    /// A device of its own.
    pub disk: LoopDisk,
    _turn: MutexGuard<'static, ()>,
}

/// A device for `test`, when it is its turn; `None`, said aloud, where the test cannot run.
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

/// Says that a test, or a part of it, was skipped. Not by `eprintln!`, which the test runner
/// swallows.
pub fn skip<T>(test: &str, why: impl Display) -> Option<T> {
    let line = format!("skipped: {test}: {why:#}\n");
    std::io::stderr()
        .write_all(line.as_bytes())
        .expect("stderr takes a line");
    None
}
