//! The events of any source in the form of `weir-workload`: the input of `weir characterise` and
//! `weir hist --from FILE`.
//!
//! [`Selection`] selects the VM and disk; it creates the [`question`](Selection::question), one CQL
//! query over all columns of a source. [`Feed`] runs it and converts its rows to
//! [`Subject`](weir_workload::Subject)s and [`Event`](weir_workload::Event)s, in timestamp order.

mod feed;
pub mod json;
mod rows;
mod selection;

pub use feed::{Feed, Reader};
pub use selection::Selection;
