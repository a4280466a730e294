//! A client of the monitor: runs queries and scripts on its fleet and prints their results.
//!
//! | module | content |
//! | --- | --- |
//! | [`backup`] | standing queries and views as a file |
//! | [`mod@explain`] | how a query would be split in a fleet of hosts like this one |
//! | [`measured`] | the measured costs of plans on this host |
//! | [`note`] | the completeness of results, as text |
//! | [`replica`] | the current rows of a watched relation, from snapshots and changes |
//! | [`script`] | the queries of a script as queries over a fleet |
//! | [`show`] | watches a query and prints its results until it ends |

pub mod backup;
mod explain;
mod measured;
mod note;
mod replica;
pub mod script;
pub mod show;
pub mod statements;

pub use note::{MissedRows, UpdateNote};

pub use explain::{SPAN, explain};
pub use measured::{Answers, Measured, measure};
