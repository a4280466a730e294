//! [`MeasuredDevice`]: what a device can do, measured from a recording, and how well the model
//! predicts what the recording has later.
//!
//! The first half of a recording measures the demands; its second quarter is predicted from its
//! first one with each number of channels, and the numbers that predict it about equally well
//! remain plausible. The second half is then compared, block by block, with its prediction from the
//! first one: the error of the model.

use std::ops::Range;

use serde::Serialize;
use weir_model::Nanos;

use super::arrivals::ArrivalProcess;
use super::replay::{ReplayOutcome, ReplayedDisk, replay};
use super::station::{CHANNELS_UNLIMITED, Station, accepted_max};
use super::stream::{DiskStream, HostedDevice, RecordedRequest};

/// The blocks in which prediction and recording are compared.
const BLOCKS: usize = 10;

/// The least number of recorded requests of a block.
const BLOCK_REQUESTS_MIN: usize = 20;

/// The blocks that are needed for an error.
const BLOCKS_MIN: usize = 5;

/// A number of channels whose error is at most this factor and difference above the least one is
/// plausible.
const PLAUSIBLE_FACTOR: f64 = 1.25;
const PLAUSIBLE_DIFFERENCE: f64 = 0.02;

/// Of requests that were served in another order than that of their arrival, the means are those of
/// the simulation, and the percentiles are not. So only the means count, and less strictly.
const PLAUSIBLE_MEAN: f64 = 0.15;

/// The requests that are replayed for each number of channels.
const REPLAYED_MAX: usize = 100_000;

/// The numbers of channels that are tried, up to the number in flight.
const CHANNELS: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

/// A device of the recording, or of a calibration.
#[derive(Clone, Debug)]
pub struct MeasuredDevice {
    /// The device.
    pub device: HostedDevice,
    /// Whether it was measured by a calibration.
    pub calibrated: bool,
    /// The models that are plausible, by their number of channels; never empty. The first one, with
    /// the fewest channels, predicts the longest queues. It is used wherever one is needed, so that
    /// no change is found good only because a queue was never observed.
    pub stations: Vec<Station>,
    /// The error; `None` with too few requests.
    pub accuracy: Option<Accuracy>,
    /// Latency by the number in flight.
    pub depths: Vec<DepthLatency>,
}

/// The error of a model: prediction and recording, compared block by block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// The number of blocks.
    pub blocks: usize,
    /// The factor within which nine of ten predicted mean latencies are: 1.1 is 10 %.
    pub mean_factor: f64,
    /// The same for the 99th percentile.
    pub p99_factor: f64,
    /// The median of predicted over recorded mean latency.
    pub bias: f64,
}

/// Requests that arrived with a number in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DepthLatency {
    /// The least number in flight, the request included.
    pub in_flight_min: usize,
    /// The greatest.
    pub in_flight_max: usize,
    /// Their number.
    pub requests: u64,
    /// Their mean latency.
    pub latency_mean_ns: f64,
    /// Completions per second of time with such a number in flight, by Little's law.
    pub throughput_iops: f64,
}

/// Disks with their arrivals.
#[derive(Clone, Debug)]
pub struct PreparedDisk {
    /// The requests.
    pub stream: DiskStream,
    /// Their causes.
    pub process: ArrivalProcess,
}

impl PreparedDisk {
    /// Of a recorded disk.
    pub fn new(stream: DiskStream) -> PreparedDisk {
        PreparedDisk {
            process: ArrivalProcess::of(&stream.requests),
            stream,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.process.closed
    }

    pub(super) fn replayed(&self) -> ReplayedDisk<'_> {
        ReplayedDisk {
            stream: &self.stream,
            process: &self.process,
        }
    }
}

impl MeasuredDevice {
    /// A device from the requests of its disks within `training`; the error from those within
    /// `validation`. `None` with too few requests.
    pub fn measure(
        device: &HostedDevice,
        disks: &[&PreparedDisk],
        training: &Range<Nanos>,
        validation: &Range<Nanos>,
    ) -> Option<MeasuredDevice> {
        let middle = training.start + (training.end - training.start) / 2;
        let first = merged(disks, &(training.start..middle));
        let second = limited(disks, &(middle..training.end));
        let all = merged(disks, training);
        let depths = depths(&all);
        let accepted = accepted_max(&all);
        // As many channels as there were requests in flight explain the recording as well as more.
        let depth_max = depths.last()?.in_flight_max;
        let most = accepted.unwrap_or(depth_max);
        let tried = CHANNELS.iter().copied().filter(|channels| *channels < most);
        let unlimited = accepted.is_none().then_some(CHANNELS_UNLIMITED);
        let tried = tried.chain([most]).chain(unlimited);
        let trials: Vec<ChannelTrial> = tried
            .filter_map(|channels| {
                let station = Station::measured(&first, disks.len(), channels);
                ChannelTrial::of(&station, &ratios(disks, &station, &second))
            })
            .collect();
        let mut likely: Vec<&ChannelTrial> = plausible(&trials).collect();
        if likely.is_empty() && accepted.is_some() {
            // It has no other channels, however badly its past predicts it.
            likely.extend(trials.last());
        }
        let station = |trial: &&ChannelTrial| Station::measured(&all, disks.len(), trial.channels);
        let stations: Vec<Station> = likely.iter().map(station).collect();
        if stations.is_empty() {
            return None;
        }
        let mut measured = MeasuredDevice {
            device: device.clone(),
            calibrated: false,
            stations,
            accuracy: None,
            depths,
        };
        measured.accuracy = measured.accuracy_on(disks, validation);
        Some(measured)
    }

    /// The error for other requests.
    pub fn accuracy_on(&self, disks: &[&PreparedDisk], window: &Range<Nanos>) -> Option<Accuracy> {
        let ratios = ratios(disks, &self.stations[0], window);
        if ratios.len() < BLOCKS_MIN {
            return None;
        }
        let within = |of: fn(&BlockRatio) -> f64| {
            let mut errors: Vec<f64> = ratios.iter().map(|ratio| of(ratio).abs()).collect();
            errors.sort_by(f64::total_cmp);
            errors[(errors.len() * 9).div_ceil(10) - 1].exp()
        };
        let means: Vec<f64> = ratios.iter().map(|ratio| ratio.mean).collect();
        Some(Accuracy {
            blocks: ratios.len(),
            mean_factor: within(|ratio| ratio.mean),
            p99_factor: within(|ratio| ratio.p99),
            bias: crate::ranks::median(&means).exp(),
        })
    }

    /// The plausible numbers of channels, the least and the greatest; `None` for no limit.
    pub fn channels(&self) -> [Option<usize>; 2] {
        let limit = |station: Option<&Station>| {
            let channels = station.expect("a device has a station").channels;
            (channels != CHANNELS_UNLIMITED).then_some(channels)
        };
        [limit(self.stations.first()), limit(self.stations.last())]
    }
}

/// The logarithms of predicted over recorded latency in a block.
struct BlockRatio {
    mean: f64,
    p99: f64,
}

/// How well a number of channels predicts.
#[derive(Clone, Copy, Debug)]
struct ChannelTrial {
    channels: usize,
    /// Whether the requests were served in the order of their arrival, as in the simulation.
    in_order: bool,
    /// The error of the means of the blocks, root mean square.
    mean: f64,
    /// That of their 99th percentiles.
    p99: f64,
}

impl ChannelTrial {
    /// `None` with too few blocks.
    fn of(station: &Station, ratios: &[BlockRatio]) -> Option<ChannelTrial> {
        let error = |of: fn(&BlockRatio) -> f64| {
            let sum: f64 = ratios.iter().map(|ratio| of(ratio).powi(2)).sum();
            (sum / ratios.len() as f64).sqrt()
        };
        (ratios.len() >= BLOCKS_MIN).then(|| ChannelTrial {
            channels: station.channels,
            in_order: station.in_order,
            mean: error(|r| r.mean),
            p99: error(|r| r.p99),
        })
    }

    fn score(&self) -> f64 {
        self.mean + 0.5 * self.p99
    }
}

/// The trials that predict about as well as the best one.
fn plausible(trials: &[ChannelTrial]) -> impl Iterator<Item = &ChannelTrial> {
    let in_order = trials.iter().filter(|trial| trial.in_order);
    let least = in_order
        .map(ChannelTrial::score)
        .fold(f64::INFINITY, f64::min);
    trials.iter().filter(move |trial| match trial.in_order {
        true => trial.score() <= PLAUSIBLE_FACTOR * least + PLAUSIBLE_DIFFERENCE,
        false => trial.mean <= PLAUSIBLE_MEAN,
    })
}

fn ratios(disks: &[&PreparedDisk], station: &Station, window: &Range<Nanos>) -> Vec<BlockRatio> {
    let replayed: Vec<_> = disks.iter().map(|disk| disk.replayed()).collect();
    let ReplayOutcome { latencies, .. } = replay(&replayed, station, window, 1);
    let mut recorded = recorded(disks, window);
    recorded.sort_unstable();
    let blocks = (recorded.len() / BLOCK_REQUESTS_MIN).min(BLOCKS);
    if blocks == 0 {
        return Vec::new();
    }
    // Blocks of equally many recorded requests.
    let size = recorded.len().div_ceil(blocks);
    let ends: Vec<Nanos> = recorded
        .iter()
        .skip(size)
        .step_by(size)
        .map(|(at, _)| *at)
        .collect();
    let mut predicted = vec![Vec::new(); ends.len() + 1];
    for of in &latencies {
        predicted[ends.partition_point(|end| *end <= of.arrival_ns)].push(of.latency_ns);
    }
    let both = predicted.into_iter().zip(recorded.chunks(size));
    both.filter_map(|(mut predicted, recorded)| {
        let mut recorded: Vec<Nanos> = recorded.iter().map(|(_, latency)| *latency).collect();
        let enough = predicted.len().min(recorded.len()) >= BLOCK_REQUESTS_MIN / 2;
        enough.then(|| BlockRatio {
            mean: (mean(&predicted) / mean(&recorded)).ln(),
            p99: (p99(&mut predicted) / p99(&mut recorded)).ln(),
        })
    })
    .collect()
}

/// Arrival and latency of the requests that arrived and completed within the window.
pub(super) fn recorded(disks: &[&PreparedDisk], window: &Range<Nanos>) -> Vec<(Nanos, Nanos)> {
    let of = |disk: &&PreparedDisk| disk.stream.requests[disk.stream.within(window)].to_vec();
    let requests = disks.iter().flat_map(of);
    requests
        .filter(|request| request.completion_ns() < window.end)
        .map(|request| (request.arrival_ns, request.latency_ns))
        .collect()
}

/// The mean, at least 1 ns.
pub(super) fn mean(values: &[Nanos]) -> f64 {
    let sum: f64 = values.iter().map(|value| *value as f64).sum();
    (sum / values.len().max(1) as f64).max(1.0)
}

/// The 99th percentile, at least 1 ns. Reorders the values.
pub(super) fn p99(values: &mut [Nanos]) -> f64 {
    if values.is_empty() {
        return 1.0;
    }
    let at = (values.len() * 99).div_ceil(100) - 1;
    (*values.select_nth_unstable(at).1 as f64).max(1.0)
}

/// The window, or its beginning if it has too many requests.
fn limited(disks: &[&PreparedDisk], window: &Range<Nanos>) -> Range<Nanos> {
    let count: usize = disks
        .iter()
        .map(|disk| disk.stream.within(window).len())
        .sum();
    let share = (REPLAYED_MAX as f64 / count.max(1) as f64).min(1.0);
    window.start..window.start + ((window.end - window.start) as f64 * share) as Nanos
}

/// The requests of all disks in the order of arrival.
fn merged(disks: &[&PreparedDisk], window: &Range<Nanos>) -> Vec<(usize, RecordedRequest)> {
    let mut all = Vec::new();
    for (number, disk) in disks.iter().enumerate() {
        let requests = &disk.stream.requests[disk.stream.within(window)];
        all.extend(requests.iter().map(|request| (number, *request)));
    }
    all.sort_by_key(|(_, request)| request.arrival_ns);
    all
}

/// Latency by the number in flight, in powers of two.
fn depths(requests: &[(usize, RecordedRequest)]) -> Vec<DepthLatency> {
    let mut sums: Vec<(u64, f64, usize, usize, usize)> = Vec::new();
    let mut completions: Vec<Nanos> = Vec::new();
    for (_, request) in requests {
        let arrival_ns = request.arrival_ns;
        completions.drain(..completions.partition_point(|at| *at <= arrival_ns));
        let in_flight = completions.len() + 1;
        let band = in_flight.next_power_of_two().trailing_zeros() as usize;
        if sums.len() <= band {
            sums.resize(band + 1, (0, 0.0, usize::MAX, 0, 0));
        }
        let (count, latency, least, most, sum) = &mut sums[band];
        *count += 1;
        *sum += in_flight;
        *latency += request.latency_ns as f64;
        (*least, *most) = ((*least).min(in_flight), (*most).max(in_flight));
        let end_ns = request.completion_ns();
        completions.insert(completions.partition_point(|at| *at <= end_ns), end_ns);
    }
    let found = sums.into_iter().filter(|(count, ..)| *count > 0);
    found
        .map(
            |(requests, latency, in_flight_min, in_flight_max, in_flight)| {
                let latency_mean_ns = latency / requests as f64;
                let in_flight = in_flight as f64 / requests as f64;
                DepthLatency {
                    in_flight_min,
                    in_flight_max,
                    requests,
                    latency_mean_ns,
                    throughput_iops: in_flight * 1e9 / latency_mean_ns.max(1.0),
                }
            },
        )
        .collect()
}
