//! Real guests in QEMU, watched by weir: whose I/O it says it is, held against what the guests did.
//!
//! Three counts are the truth: the load program's in each guest, the guest kernel's
//! `/proc/diskstats`, and QEMU's `query-blockstats`. Each test needs root, BPF, QEMU and the guest
//! that `cargo xtask guest` makes; without them it says loudly that it was skipped. The tests run
//! one at a time: they share two processors and one kernel.

mod ground;
mod host;
mod kernels;
mod libvirt;
mod matrix;
mod places;
mod screens;
mod tapdisk;
mod watching;

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use weir_testing::kernel::Kernel;
use weir_testing::{Kit, run};

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// The guest's kit, when it is the turn of `test`; `None`, reported, where it cannot run.
pub fn kit(test: &str) -> Option<(Kit, MutexGuard<'static, ()>)> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let ready = Kit::find().and_then(|kit| {
        ensure!(
            run("id", &["-u"])? == "0",
            "only root can attach programs and make devices"
        );
        live().map(|()| kit)
    });
    unless_skipped(test, ready).map(|kit| (kit, turn))
}

/// The kit of a guest that is watched from within, when it is the turn of `test`; `None`, reported,
/// where it cannot run. The host needs no BPF, and no root.
pub fn kit_of(test: &str, kernel: &Kernel) -> Option<(Kit, MutexGuard<'static, ()>)> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    unless_skipped(test, Kit::of(kernel)).map(|kit| (kit, turn))
}

/// What a test needs; `None`, reported, where it is not to be had.
fn unless_skipped<T>(test: &str, ready: Result<T>) -> Option<T> {
    ready
        .map_err(|why| {
            weir_testing::skipped(test, format_args!("{why:#}"));
        })
        .ok()
}

/// Whether weir can watch this host.
fn live() -> Result<()> {
    run(env!("CARGO_BIN_EXE_weir"), &["doctor"])
        .map(|_| ())
        .context("live I/O cannot be observed here: `weir doctor` says why")
}
