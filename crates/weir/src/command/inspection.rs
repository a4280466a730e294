//! `weir inspection`: started by commands that observe this host, to read the processes of other
//! users and to query QEMU after weir itself has dropped its privileges. Not for direct use.

use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_tap::inspection;

use weir_runtime::failure::{Ending, Failure};

pub fn run() -> Result<Ending, Failure> {
    // When a service is stopped, this process receives the signal as well. It ends when its socket
    // is closed.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default()).map_err(Failure::world)?;
    }
    inspection::run().map_err(|why| Failure::world(format!("the inspection process: {why}")))?;
    Ok(Ending::Done)
}
