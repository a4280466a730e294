//! The live taps of this host, and the streams that each serves.

use std::sync::Arc;

use weir_model::{Capabilities, Demand};

use crate::ebpf::{self, LiveOptions};
use crate::inventory::{InventoryWatch, WatchOptions};
use crate::{Tap, TapError, inventory, journal, qmp};

/// A tap of this host and its capabilities.
#[derive(Debug)]
pub struct LiveTap {
    /// Its name.
    pub name: &'static str,
    /// The streams and relations it serves.
    pub streams: &'static [&'static str],
    /// Opens it for demands of those streams.
    pub open: TapOpener,
    /// The capabilities for each of them.
    pub capabilities: fn() -> Capabilities,
    /// Whether it needs the inventory for a demand.
    pub needs_inventory: fn(&Demand) -> bool,
}

/// The function that opens a tap.
pub type TapOpener = fn(&[Demand], &LiveOptions) -> Result<Box<dyn Tap>, TapError>;

/// Every live tap. A stream is served by the first one that names it.
pub static TAPS: &[&LiveTap] = &[
    &ebpf::TAP,
    &ebpf::streams::fileio::TAP,
    &ebpf::streams::iopath::TAP,
    &ebpf::streams::pagecache::TAP,
    &inventory::tap::TAP,
    &qmp::tap::TAP,
    &journal::TAP,
];

impl LiveTap {
    /// The tap that serves `stream`.
    pub fn of(stream: &str) -> Option<&'static LiveTap> {
        let serves = |t: &&&LiveTap| t.streams.iter().any(|s| s.eq_ignore_ascii_case(stream));
        TAPS.iter().find(serves).copied()
    }
}

/// The inventory for a tap: that of its options, or a new one.
pub fn inventory_of(options: &LiveOptions) -> Result<Arc<InventoryWatch>, TapError> {
    match &options.inventory {
        Some(watch) => Ok(watch.clone()),
        None => InventoryWatch::start(&WatchOptions::default()),
    }
}

/// The union of the capabilities of this host's taps.
pub fn capabilities() -> Capabilities {
    let all = TAPS.iter().flat_map(|tap| (tap.capabilities)().streams);
    Capabilities {
        streams: all.collect(),
    }
}

/// The error of a live tap, as an answer to the demand for live I/O.
pub fn unwatched(error: TapError) -> TapError {
    match error {
        TapError::Unavailable { what, remedy } => TapError::Unavailable {
            what: format!("live I/O cannot be observed: {what}"),
            remedy: format!("{remedy}; use --from FILE to query a recording"),
        },
        other => other,
    }
}
