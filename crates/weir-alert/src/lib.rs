//! Alerts: rules, the states of their instances, and their run over live I/O and recordings.
//!
//! An alert is a keyed relation: a row that is present, and for which the condition of WHEN is
//! true, is an instance that fires. [`machine`] has the states of the instances and is pure;
//! [`instances`] feeds it with the changes of a rule's relation; [`board`] puts the events of all
//! rules in timestamp order; [`run`] is the run of a file; [`expectation`] compares it with what
//! the file states; [`shipped`] has the rules that come with weir; [`suggestion`] proposes
//! thresholds; [`receiver`] delivers events, which [`notifier`] withholds and groups by [`routes`]
//! and [`silence`]s; [`alert_log`] stores them for queries; [`actor`] has actions carried out,
//! which [`witness`] conditions judge;
//! [`fleet`] is the run over a fleet, at its monitor, and [`fleet_actions`] what it does there.

pub mod actor;
pub mod alert_log;
pub mod board;
pub mod event;
pub mod expectation;
pub mod fleet;
pub mod fleet_actions;
mod fleet_requests;
pub mod instances;
pub mod machine;
pub mod notifier;
pub mod placed;
pub mod receiver;
pub mod routes;
pub mod run;
pub mod shipped;
pub mod silence;
pub mod state_file;
pub mod suggestion;
pub mod witness;
