//! `weir qemu-guard`: started by `--from qemu:VM` to disable tracing in QEMU when weir has ended,
//! also after a crash. Not for direct use.

use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_tap::vdisk::guard;

use weir_runtime::failure::{Ending, Failure};

pub fn run() -> Result<Ending, Failure> {
    // When a service is stopped, this process receives the signal as well. It ends when its pipe is
    // closed.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default()).map_err(Failure::world)?;
    }
    guard::run().map_err(|why| Failure::world(format!("the guard of QEMU's tracing: {why}")))?;
    Ok(Ending::Done)
}
