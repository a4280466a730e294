//! Real guests in QEMU, observed by weir: the attribution of I/O is compared with the guests' own
//! I/O.
//!
//! The reference is three counts: that of the load program in each guest, the guest kernel's
//! `/proc/diskstats`, and QEMU's `query-blockstats`. Each test needs root, BPF, QEMU and the guest
//! that `cargo xtask guest` builds; without them it logs that it is skipped. The tests run one at a
//! time: they share two processors and one kernel.

mod correlated;
mod functions;
mod host;
mod kernels;
mod libvirt;
mod matrix;
mod merging;
mod neighbours;
mod places;
mod refusals;
mod screens;
mod tapdisk;
mod test_devices;
mod tuning;
mod tutorial;
mod watching;
mod with_weir;

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use weir_testing::kernel::{GuestKernel, LINUX_6_1};
use weir_testing::{Kit, run};

/// Allows one test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for the turn of `test` and returns the guest's kit; logs the reason and returns `None`
/// where it cannot run.
pub fn kit(test: &str) -> Option<(Kit, MutexGuard<'static, ()>)> {
    live_kit_of(test, &LINUX_6_1)
}

/// The same for a guest with this kernel.
pub fn live_kit_of(test: &str, kernel: &GuestKernel) -> Option<(Kit, MutexGuard<'static, ()>)> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let ready = Kit::of(kernel).and_then(|kit| {
        ensure!(
            run("id", &["-u"])? == "0",
            "only root can attach programs and make devices"
        );
        live().map(|()| kit)
    });
    unless_skipped(test, ready).map(|kit| (kit, turn))
}

/// The same for a guest that runs weir itself. The host needs no BPF, and no root.
pub fn kit_of(test: &str, kernel: &GuestKernel) -> Option<(Kit, MutexGuard<'static, ()>)> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    unless_skipped(test, Kit::of(kernel)).map(|kit| (kit, turn))
}

/// What a test needs; logs the reason and returns `None` where it is not available.
fn unless_skipped<T>(test: &str, ready: Result<T>) -> Option<T> {
    ready
        .map_err(|why| {
            weir_testing::skipped(test, format_args!("{why:#}"));
        })
        .ok()
}

/// Whether weir can observe live I/O on this host.
fn live() -> Result<()> {
    run(env!("CARGO_BIN_EXE_weir"), &["doctor"])
        .map(|_| ())
        .context("live I/O cannot be observed here: `weir doctor` reports the reason")
}
