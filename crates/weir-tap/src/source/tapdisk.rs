//! `tapdisk:PATH`: the requests of the disks that a `weir tapdisk` serves.

use std::path::PathBuf;

use weir_model::{Capabilities, Demand};

use super::{EventSource, SourceKind, SourceSettings, Started};
use crate::TapError;
use crate::tapdisk::{self, TapdiskOptions};

/// The disks that a tapdisk serves.
pub static KIND: SourceKind = SourceKind {
    name: "tapdisk:",
    argument: "PATH",
    aliases: &[],
    doc: "the disks that a `weir tapdisk` serves; PATH is its socket or that of a disk",
    is_live: true,
    part: "tapdisk",
    open: |path, _| Ok(Box::new(Tapdisk(path.into()))),
};

/// A tapdisk by the path of its control socket, or of a disk's socket.
struct Tapdisk(PathBuf);

impl EventSource for Tapdisk {
    fn probe(&self) -> Result<Capabilities, TapError> {
        Ok(tapdisk::capabilities())
    }

    fn start(
        &self,
        demands: &[Demand],
        settings: &SourceSettings,
    ) -> Result<Vec<Started>, TapError> {
        let options = TapdiskOptions {
            poll_interval: settings.live.poll_interval,
            epoch_offset_ns: settings.live.epoch_offset_ns,
            interval_shift_ns: settings.live.interval_shift_ns.clone(),
            host: settings.live.host,
            ..TapdiskOptions::default()
        };
        let tap = tapdisk::open(&self.0, demands, options)?;
        Ok(Started::all(Box::new(tap), demands))
    }
}
