//! [`ColocationReport`]: the proposed placement of disks, with what it is based on.

use serde::Serialize;
use weir_model::Nanos;

use super::affinity::{DiskAffinity, DiskLoadShape};
use super::estimate::{LatencyEstimate, LatencyObjective};
use super::measure::{Accuracy, DepthLatency};
use super::sharing::SharedDevice;
use super::stream::HostedDevice;
use crate::profile::HostedDisk;

/// The advice on all disks. Predictions are for the second half of the recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColocationReport {
    /// The arrival of the first request.
    pub begin_ns: Nanos,
    /// The arrival of the last one.
    pub end_ns: Nanos,
    /// What is to be improved.
    pub objective: LatencyObjective,
    /// The number of requests.
    pub requests: u64,
    /// Requests and disks beyond the limits.
    pub requests_omitted: u64,
    /// Requests whose latency is unknown.
    pub requests_untimed: u64,
    /// What is advised.
    pub outcome: PlacementOutcome,
    /// The moves, recommended or considered.
    pub moves: Vec<DiskMove>,
    /// The objective over all requests as recorded.
    pub recorded_ns: Option<f64>,
    /// The same by the model, as it is.
    pub modelled: Option<LatencyEstimate>,
    /// The same after the moves.
    pub predicted: Option<LatencyEstimate>,
    /// The devices.
    pub devices: Vec<AdvisedDevice>,
    /// Devices with too few requests for a measurement; their disks are not moved.
    pub unmeasured: Vec<HostedDevice>,
    /// The disks.
    pub disks: Vec<AdvisedDisk>,
    /// Pairs of disks on one device.
    pub sharing: Vec<SharedDevice>,
}

/// Whether the moves are recommended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "device")]
pub enum PlacementOutcome {
    /// They are: the whole interval of the prediction is better than what was recorded.
    Recommended,
    /// They are not: the predicted gain is below the error of the model.
    WithinError,
    /// No move improves the first half of the recording.
    NoBetterPlacement,
    /// A move that improves the first half of the recording does not improve the second one.
    NotInSecondHalf,
    /// Many of the requests are of a kind that this device was not measured with.
    UnmeasuredRequests(HostedDevice),
    /// The error of the model of this device is unknown.
    UnknownError(HostedDevice),
    /// There is no device to move a disk to.
    OneDevice,
    /// There are no requests.
    NoRequests,
}

/// A disk that changes its device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskMove {
    /// The disk.
    pub disk: HostedDisk,
    /// Its device.
    pub from: HostedDevice,
    /// Its device after the move.
    pub to: HostedDevice,
    /// The busiest disks that share the device with it before.
    pub leaves: Vec<Neighbour>,
    /// The busiest disks that share the device with it afterwards.
    pub joins: Vec<Neighbour>,
}

/// A disk on the same device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Neighbour {
    /// The disk.
    pub disk: HostedDisk,
    /// How both loads relate.
    pub affinity: DiskAffinity,
}

/// A device before and after the moves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdvisedDevice {
    /// The device.
    pub device: HostedDevice,
    /// Whether a calibration measured it; otherwise the recording did.
    pub calibrated: bool,
    /// The least and the greatest plausible number of requests that it serves at a time; `None`
    /// without a limit.
    pub channels: [Option<usize>; 2],
    /// The error of its model.
    pub accuracy: Option<Accuracy>,
    /// Its latency by the number in flight.
    pub depths: Vec<DepthLatency>,
    /// The objective of its requests as recorded.
    pub recorded_ns: Option<f64>,
    /// The same by the model.
    pub modelled: Option<LatencyEstimate>,
    /// The same after the moves; `None` if it has no disk then.
    pub predicted: Option<LatencyEstimate>,
    /// The share of the time of its channels that is used, by the model.
    pub utilisation: Option<f64>,
    /// The same after the moves.
    pub utilisation_predicted: Option<f64>,
    /// The share of requests after the moves of a kind that was not measured.
    pub unmeasured_share: f64,
    /// Its disks.
    pub disks_before: Vec<HostedDisk>,
    /// Its disks after the moves.
    pub disks_after: Vec<HostedDisk>,
}

/// A disk before and after the moves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdvisedDisk {
    /// The disk.
    pub disk: HostedDisk,
    /// Its requests.
    pub requests: u64,
    /// Its load.
    pub shape: DiskLoadShape,
    /// The objective as recorded.
    pub recorded_ns: Option<f64>,
    /// The same by the model.
    pub modelled: Option<LatencyEstimate>,
    /// The same after the moves.
    pub predicted: Option<LatencyEstimate>,
}

impl Default for ColocationReport {
    fn default() -> ColocationReport {
        ColocationReport {
            begin_ns: 0,
            end_ns: 0,
            objective: LatencyObjective::Mean,
            requests: 0,
            requests_omitted: 0,
            requests_untimed: 0,
            outcome: PlacementOutcome::NoRequests,
            moves: Vec::new(),
            recorded_ns: None,
            modelled: None,
            predicted: None,
            devices: Vec::new(),
            unmeasured: Vec::new(),
            disks: Vec::new(),
            sharing: Vec::new(),
        }
    }
}
