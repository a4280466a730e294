//! A client of the monitor: runs queries and scripts on its fleet and shows their answers.
//!
//! | module | is |
//! | --- | --- |
//! | [`mod@explain`] | how a query would be cut where hosts are like this one |
//! | [`held`] | what a watched relation holds, through snapshots and changes |
//! | [`measured`] | what plans cost while they ran on this host |
//! | [`note`] | how complete an answer is, in words |
//! | [`script`] | the queries of a script as those of a fleet |
//! | [`show`] | watches a query and shows what comes, until it ends |

mod explain;
mod held;
mod measured;
mod note;
pub mod script;
pub mod show;

pub use note::{Missed, Note};

pub use explain::{SPAN, explain};
pub use measured::{Answers, Measured, measure};
