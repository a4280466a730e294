//! The events of any source as `weir-workload` takes them in: what `weir characterise` and
//! `weir hist --from FILE` are fed with.
//!
//! [`Selection`] is what of a source is wanted; it makes the [`question`](Selection::question), one CQL
//! query over everything that a source tells. [`Feed`] asks it and turns its rows into
//! [`Subject`](weir_workload::Subject)s and [`Event`](weir_workload::Event)s, in order of time.

mod feed;
pub mod json;
mod rows;
mod selection;

pub use feed::{Feed, Reader};
pub use selection::Selection;
