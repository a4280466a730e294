//! `weir top`: I/O and latencies by VM and disk, by file or by process, live on a screen or as
//! plain tables.
//!
//! ```text
//! queries (CQL) ─ run loop ─ gather: ticks ─┬─ state ─ draw: the screen, in a thread of its own
//!         └──────── changes, by keys ───────┘       └─ batch: plain tables or JSON
//! ```
//!
//! [`queries`] has all queries; [`columns`] is the list from which both the main query and the
//! table are built. The effect of keys is a function of the state ([`state`]), and so is the screen
//! ([`screen`]).

pub mod batch;
pub mod bounds;
pub mod columns;
pub mod figures;
pub mod gather;
pub mod history;
pub mod levels;
pub mod queries;
pub mod replay;
pub mod screen;
pub mod state;
pub mod ticks;
