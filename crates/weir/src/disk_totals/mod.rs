//! Counters by VM and disk that only grow, made of queries ([`Questions`]): what `weir iostat`,
//! `weir diskstats` and `weir exporter` show.
//!
//! ```text
//! engine ─ counters of a slice ─┐
//! engine ─ times of requests  ──┴─ Ledger ─ Totals ─ Reader: a report, a tree, a scrape
//! ```

mod busy;
mod ledger;
mod questions;
mod run;
mod totals;

pub use ledger::Reader;
pub use questions::{Questions, SLIDE_MS, Wanted};
pub use run::run;
pub use totals::{DiskKey, DiskTotals, OP_NAMES, OpTotals, Totals};
