//! Alerts: rules, the states of their instances, and their run over live I/O and recordings.
//!
//! An alert is a keyed relation: a row that is present, and for which the condition of WHEN is
//! true, is an instance that fires. [`machine`] has the states of the instances and is pure.

pub mod machine;
