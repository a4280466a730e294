//! Which disks should share a device (the future work of Ahmad 2007, section 7: recommendations for
//! virtual disk placement), by replaying merged requests through a model whose error is measured.
//!
//! ```text
//! requests ─ DiskStream ─ ArrivalProcess ─┐
//!            └ Station (channels, demands)├ replay ─ Prediction ─ advise ─ ColocationReport
//!              └ error on the second half ┘
//! ```
//!
//! A device is a queueing station with one or more channels ([`Station`]). Its demands and the
//! plausible numbers of channels are measured from the requests that it served
//! ([`MeasuredDevice`]). The requests of each disk arrive at their recorded times, or follow its
//! completions ([`ArrivalProcess`]). A replay of the requests of several disks at one station is
//! the prediction of what they would experience there together. It is compared with what the
//! recording has, so that every prediction has an interval; [`advise`] recommends nothing whose
//! gain is within it.

mod advisor;
mod affinity;
mod arrivals;
mod estimate;
mod measure;
mod replay;
mod report;
mod sharing;
mod station;
mod stream;

pub use advisor::{Calibration, ColocationOptions, advise};
pub use affinity::{DiskAffinity, DiskLoadShape};
pub use arrivals::{ArrivalCause, ArrivalProcess};
pub use estimate::{LatencyEstimate, LatencyObjective, Prediction};
pub use measure::{Accuracy, DepthLatency, MeasuredDevice, PreparedDisk};
pub use replay::{ReplayOutcome, ReplayedDisk, ReplayedLatency, replay};
pub use report::{
    AdvisedDevice, AdvisedDisk, ColocationReport, DiskMove, Neighbour, PlacementOutcome,
};
pub use sharing::{SharedDevice, SharingAdvice};
pub use station::{CHANNELS_UNLIMITED, Positions, Station};
pub use stream::{
    DISKS_MAX, DiskStream, DiskStreams, HostedDevice, REQUESTS_MAX, RecordedRequest,
    StreamCollector,
};
