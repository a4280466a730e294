//! Real guests in QEMU, watched by weir: whose I/O it says it is, held against what the guests did.
//!
//! Three counts are the truth: the load program's in each guest, the guest kernel's
//! `/proc/diskstats`, and QEMU's `query-blockstats`. Each test needs root, BPF, QEMU and the guest
//! that `cargo xtask guest` makes; without them it says loudly that it was skipped. The tests run
//! one at a time: they share two processors and one kernel.

mod ground;
mod host;
mod libvirt;
mod matrix;
mod places;
mod screens;
mod tapdisk;
mod watching;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use weir_guest::{Kit, run};

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// The guest's kit, when it is the turn of `test`; `None`, said aloud, where it cannot run.
pub fn kit(test: &str) -> Option<(Kit, MutexGuard<'static, ()>)> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let ready = Kit::find().and_then(|kit| {
        ensure!(
            run("id", &["-u"])? == "0",
            "only root can attach programs and make devices"
        );
        live().map(|()| kit)
    });
    match ready {
        Ok(kit) => Some((kit, turn)),
        Err(why) => {
            // Not by `eprintln!`, which the harness keeps to itself.
            writeln!(std::io::stderr(), "skipped: {test}: {why:#}").expect("stderr takes a line");
            None
        }
    }
}

/// Whether weir can watch this host.
fn live() -> Result<()> {
    run(env!("CARGO_BIN_EXE_weir"), &["doctor"])
        .map(|_| ())
        .context("live I/O cannot be watched here: `weir doctor` says why")
}
