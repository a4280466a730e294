//! The taps of this host, now: which of them serves which stream.

use weir_model::Demand;

use crate::ebpf::{self, LiveOptions};
use crate::{Tap, TapError, inventory, qmp};

/// A tap of this host and what it can be asked for.
#[derive(Debug)]
pub struct LiveTap {
    /// Its name.
    pub name: &'static str,
    /// The streams and relations it serves.
    pub streams: &'static [&'static str],
    /// Opens it for demands of those streams.
    pub open: Open,
    /// Whether it folds what a demand with a fold asks for, by and large: what it cannot fold after
    /// all comes as rows. The error says why not, as in "`comm` is no key in the kernel".
    pub folds: fn(&Demand) -> Result<(), String>,
}

/// How a tap is opened.
pub type Open = fn(&[Demand], &LiveOptions) -> Result<Box<dyn Tap>, TapError>;

/// Every live tap. A stream is served by the first one that names it.
pub static TAPS: &[&LiveTap] = &[&ebpf::TAP, &inventory::tap::TAP, &qmp::tap::TAP];

impl LiveTap {
    /// The tap that serves `stream`.
    pub fn of(stream: &str) -> Option<&'static LiveTap> {
        let serves = |t: &&&LiveTap| t.streams.iter().any(|s| s.eq_ignore_ascii_case(stream));
        TAPS.iter().find(serves).copied()
    }
}
