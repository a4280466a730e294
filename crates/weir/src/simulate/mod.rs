//! A fleet of synthetic agents: to see where a monitor ends.
//!
//! | module | is |
//! | --- | --- |
//! | [`load`] | the events that all agents share |
//! | [`agents`] | the agents: real connections, real fragments, one thread |
//! | [`process`] | the monitor's process: started, and what it takes |
//! | [`watch`] | those who watch the queries, and how late results are |
//! | [`figures`] | what was measured, as text and as JSON |

pub mod agents;
pub mod figures;
mod load;
pub mod process;
pub mod watch;
