//! The events of any source in the form of `weir-workload`: the input of `weir characterise` and
//! `weir hist --from FILE`.
//!
//! [`WorkloadSelection`] selects the VM and disk; it creates the
//! [`question`](WorkloadSelection::question), one CQL query over all columns of a source.
//! [`EventFeed`] runs it and converts its rows to [`Subject`](weir_workload::Subject)s and
//! [`RequestEvent`](weir_workload::RequestEvent)s, in timestamp order.

mod delivery;
mod divided;
mod feed;
pub mod files;
pub mod json;
pub(crate) mod rows;
mod selection;

pub use divided::DividedCharacteriser;
pub use feed::{EventConsumer, EventFeed};
pub use selection::WorkloadSelection;
