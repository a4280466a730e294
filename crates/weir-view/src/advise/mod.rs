//! `weir advise`: which disks should share a device, and which should not.
//!
//! One query gives the completed requests of all disks ([`question`]). [`run`](run::run) collects
//! them from this host or from the recordings of several hosts, and passes them to
//! [`advise`](weir_workload::colocation::advise).

pub mod question;
pub mod run;
