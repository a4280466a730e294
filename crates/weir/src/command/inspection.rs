//! `weir inspection`: started by commands that watch this host, to look at other users' processes
//! and to query QEMUs after weir itself has dropped its privileges. Not for direct use.

use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_tap::inspection;

use weir_runtime::failure::{Ending, Failure};

pub fn run() -> Result<Ending, Failure> {
    // What ends weir comes to us as well when a whole service is stopped. The socket reports when.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default()).map_err(Failure::world)?;
    }
    inspection::run().map_err(|why| Failure::world(format!("the inspection process: {why}")))?;
    Ok(Ending::Done)
}
