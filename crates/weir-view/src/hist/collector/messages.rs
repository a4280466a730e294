//! [`Collector`]: the requests to a collector and its responses, over the control protocol.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_model::Nanos;
use weir_tap::control::Service;

use crate::hist::choice::HistogramChoice;
use crate::hist::counted::HistogramKey;
use crate::hist::saved;

/// The service.
#[derive(Debug)]
pub struct Collector;

impl Service for Collector {
    const NAME: &'static str = "collector";
    const VERSION: u32 = 1;
    const REQUEST_BYTES_MAX: usize = 64 << 10;
    /// As text of JSON, a line of histograms is at most twice as long.
    const RESPONSE_BYTES_MAX: usize = 2 * saved::LINE_BYTES_MAX + (4 << 10);
    type Request = CollectorRequest;
    type Response = CollectorResponse;
}

/// A collection to be started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionRequest {
    /// The VM and the disk.
    pub choice: HistogramChoice,
    /// The key of the histograms.
    pub by: HistogramKey,
    /// The duration; `None` until it is stopped.
    pub span: Option<Duration>,
    /// The host's devices to observe; empty for all relevant ones.
    pub devices: Vec<String>,
    /// Observe stacked devices too.
    pub stacked: bool,
    /// Processes that are treated as VMs, in the syntax of `--vm`.
    pub declared: Vec<String>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectorRequest {
    /// Starts a collection, or extends one that was started with the same selection.
    Start(CollectionRequest),
    /// Stops the selection.
    Stop(HistogramChoice),
    /// Resets the counts of the selection.
    Reset(HistogramChoice),
    /// The counts so far.
    Snapshot {
        /// The selection.
        choice: HistogramChoice,
        /// The key of the histograms.
        by: HistogramKey,
    },
    /// The running collections.
    Status,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectorResponse {
    /// The collections that were started, stopped or reset, or that are running.
    Collections(Vec<Collecting>),
    /// Lines of histograms, as [`saved`] has them; in a part of a response, one of them.
    Histograms(Vec<String>),
}

/// A collection that is running or stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collecting {
    /// The selected disks.
    pub choice: HistogramChoice,
    /// The key of the histograms.
    pub by: HistogramKey,
    /// The start.
    pub since: Nanos,
    /// When it stops automatically; `None` for never.
    pub until: Option<Nanos>,
}
