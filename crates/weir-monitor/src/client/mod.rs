//! A client of the monitor: runs queries and scripts on its fleet and prints their results.
//!
//! | module | content |
//! | --- | --- |
//! | [`mod@explain`] | how a query would be split in a fleet of hosts like this one |
//! | [`held`] | the current rows of a watched relation, from snapshots and changes |
//! | [`measured`] | the measured costs of plans on this host |
//! | [`note`] | the completeness of results, as text |
//! | [`script`] | the queries of a script as queries over a fleet |
//! | [`show`] | watches a query and prints its results until it ends |

mod explain;
mod held;
mod measured;
mod note;
pub mod script;
pub mod show;

pub use note::{Missed, Note};

pub use explain::{SPAN, explain};
pub use measured::{Answers, Measured, measure};
