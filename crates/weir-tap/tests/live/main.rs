//! The live tap against the truth: real probes on a loop device made here, real load by fio, counts
//! held against fio's own and the kernel's (`/proc/diskstats`).
//!
//! Needs root, BPF and fio; without them each test says loudly that it was skipped. The tests run
//! one at a time: they look at one machine.

mod counts;
mod disk;
mod images;
mod life;
mod load;
mod owners;
mod selections;
mod stacked;
mod times;
mod traps;
mod watch;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use disk::LoopDisk;

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
    if let Err(why) = disk::run("fio", &["--version"]) {
        return skip(test, &why);
    }
    if let Err(why) = disk::run("id", &["-u"]).and_then(|id| is_root(&id)) {
        return skip(test, &why);
    }
    match LoopDisk::new(mebibytes) {
        Ok(disk) => Some(Bench { disk, _turn: turn }),
        Err(why) => skip(test, &why),
    }
}

fn is_root(id: &str) -> Result<(), String> {
    if id == "0" {
        Ok(())
    } else {
        Err("only root can attach programs and make devices".into())
    }
}

/// Says that a test, or a part of it, was skipped. Not by `eprintln!`, which the test runner
/// swallows.
pub fn skip<T>(test: &str, why: &str) -> Option<T> {
    let line = format!("skipped: {test}: {why}\n");
    std::io::stderr()
        .write_all(line.as_bytes())
        .expect("stderr takes a line");
    None
}
