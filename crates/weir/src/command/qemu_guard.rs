//! `weir qemu-guard`: started by `--from qemu:VM` to switch tracing off when weir has ended,
//! for whatever reason. Not for direct use.

use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_tap::vdisk::guard;

use weir_runtime::failure::{Ending, Failure};

pub fn run() -> Result<Ending, Failure> {
    // What ends weir comes to us as well when a whole service is stopped. The pipe tells us when.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default()).map_err(Failure::world)?;
    }
    guard::run().map_err(|why| Failure::world(format!("the guard cannot do its work: {why}")))?;
    Ok(Ending::Done)
}
