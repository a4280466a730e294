//! `weir correlate`: which disks move together, with which lag, and which one slows another.
//!
//! One query adds up the requests of each disk for each step ([`question`]). [`run`](run::run)
//! passes the steps to [`DiskCorrelator`](weir_workload::correlation::DiskCorrelator) and prints
//! its windows as they slide, and a summary at the end.

pub mod question;
pub mod run;
