//! What a workload is: the distributions that `vscsiStats` keeps of a virtual disk (Ahmad 2007, "Easy
//! and efficient disk I/O workload characterization in VMware ESX server", section 3), and what can be
//! said of the workload beyond them.
//!
//! [`Event`]s of one [`Subject`] go in, in order of time; what comes out is data. Nothing here opens a
//! file, looks at a clock or prints: the kernel's histograms, a recording and a live stream give the same
//! [`Histograms`], bin for bin.

mod counter;
mod distribution;
mod event;
mod histograms;
mod metric;
mod track;

pub use counter::Counter;
pub use distribution::Distribution;
pub use event::{Event, Request, Response, Subject};
pub use histograms::Histograms;
pub use metric::{Class, Measure, Metric};
pub use track::{End, IN_FLIGHT_MAX, Issue, Step, Track};
