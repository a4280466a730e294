//! Monotonic counters by VM and disk, computed by queries ([`Questions`]): what `weir iostat`,
//! `weir diskstats` and `weir exporter` show.
//!
//! ```text
//! engine ─ counters of a slice ─┐
//! engine ─ times of requests  ──┴─ Ledger ─ Totals ─ Reader: a report, a tree, a scrape
//! ```

mod busy;
mod ledger;
mod losses;
mod questions;
mod run;
mod totals;
mod whole;

pub use ledger::{LedgerReader, SYSFS};
pub use questions::{CounterSelection, Devices, Questions, SLIDES_MS, slide_ms};
pub use run::open;
pub use totals::{DiskKey, DiskTotals, OP_NAMES, OpTotals, Totals};
pub use whole::Whole;
