//! `weir path`: where the time of requests goes, level by level, from stream `IOpath` of a host or
//! `GuestIO` of a fleet.
//!
//! [`PathSelection`] makes the query for the rows. [`PathTable`] adds them up for each VM and disk,
//! and keeps the slowest ones; [`run`](run::run) prints one at the end of each interval, as
//! [`text`] or [`json`]. [`feed`] passes single requests on, for `weir outliers`.

pub mod feed;
pub mod json;
mod row;
pub mod run;
mod selection;
mod table;
pub mod text;

pub use selection::{GUEST_LEVELS, HOST_LEVELS, LevelStream, PathSelection};
pub use table::PathTable;
