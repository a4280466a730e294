//! Workload characterisation: the distributions that `vscsiStats` collects for a virtual disk
//! (Ahmad 2007, "Easy and efficient disk I/O workload characterization in VMware ESX server",
//! section 3), and further analyses.
//!
//! The input are the [`RequestEvent`]s of each [`Subject`] in timestamp order; the output is plain
//! data. Nothing here opens a file, reads a clock or prints: the kernel's histograms, a recording
//! and a live stream give the same [`Histograms`], bin for bin.

mod advice;
pub mod analysis;
mod characteriser;
pub mod colocation;
pub mod correlation;
mod counter;
mod devices;
mod distribution;
mod event;
mod evidence;
pub mod files;
pub mod guest;
mod histograms;
mod id_map;
mod interference;
mod intervals;
pub mod json;
pub mod little;
mod metric;
pub mod outliers;
mod profile;
mod ranks;
mod track;
mod unseen;
mod verdict;

pub use characteriser::{Characteriser, SUBJECTS_MAX};
pub use counter::Counter;
pub use distribution::Distribution;
pub use event::{IssuedRequest, RequestEvent, Response, Subject};
pub use evidence::{Confidence, Evidence, REQUESTS_LOW, REQUESTS_MIN};
pub use histograms::Histograms;
pub use id_map::{IdHasher, IdMap};
pub use interference::Interference;
pub use metric::{Class, Metric, MetricUnit};
pub use profile::{Advice, HostedDisk, Missing, Profile, Report, SubjectName, Topic};
pub use track::{End, IN_FLIGHT_MAX, Issue, Step, Track};
pub use unseen::{CountedDisk, LostRequest, Unseen};
pub use verdict::{Part, Pattern, Verdict};
