//! [`Prediction`]: the latencies of disks that share a device, by every plausible model of the
//! device.

use std::ops::Range;

use serde::Serialize;
use weir_model::Nanos;

use super::measure::{MeasuredDevice, PreparedDisk, mean, p99, recorded};
use super::replay::{ReplayedDisk, replay};

/// The simulations of each model, which differ in the demands that are drawn.
const SEEDS: u64 = 3;

/// What is to be improved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyObjective {
    /// The mean latency of all requests.
    Mean,
    /// Their 99th percentile.
    P99,
}

/// A value with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyEstimate {
    /// The latency.
    pub value_ns: f64,
    /// The values of all plausible models and simulations, widened by the error of the model. With
    /// a closed loop the lower end is at most that without waiting.
    pub interval_ns: [f64; 2],
}

/// Simulated latencies of the disks of one device.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// For each plausible model, and each simulation: disk and latency.
    runs: Vec<Vec<(usize, Nanos)>>,
    /// A simulation without waiting, if there is a closed loop. On a saturated device requests that
    /// are due follow completions as well: how many a faster device would get is not known.
    unqueued: Option<Vec<(usize, Nanos)>>,
    /// The share of the requests whose class was not measured.
    pub unmeasured_share: f64,
    /// The share of the channels' time that is occupied, by the model with the fewest; `None`
    /// without a limit of channels.
    pub utilisation: Option<f64>,
}

impl LatencyObjective {
    /// Every objective.
    pub const ALL: [LatencyObjective; 2] = [LatencyObjective::Mean, LatencyObjective::P99];

    /// The name.
    pub fn as_str(self) -> &'static str {
        match self {
            LatencyObjective::Mean => "mean",
            LatencyObjective::P99 => "p99",
        }
    }

    /// Its value for these latencies.
    pub fn of(self, latencies: &mut [Nanos]) -> f64 {
        match self {
            LatencyObjective::Mean => mean(latencies),
            LatencyObjective::P99 => p99(latencies),
        }
    }

    /// The factor of error of a device's model; `None` if it is unknown.
    pub fn error_factor(self, device: &MeasuredDevice) -> Option<f64> {
        device.accuracy.map(|accuracy| match self {
            LatencyObjective::Mean => accuracy.mean_factor,
            LatencyObjective::P99 => accuracy.p99_factor,
        })
    }
}

impl Prediction {
    /// These disks on the device, in each window. With `quick`, one simulation of the model
    /// with the fewest channels.
    pub fn of(
        device: &MeasuredDevice,
        disks: &[&PreparedDisk],
        windows: &[Range<Nanos>],
        quick: bool,
    ) -> Prediction {
        let replayed: Vec<ReplayedDisk> = disks.iter().map(|disk| disk.replayed()).collect();
        let mut runs = Vec::new();
        let (mut unmeasured, mut demand_ns, mut count) = (0, 0.0, 0);
        let first = &device.stations[0];
        let others = device
            .stations
            .iter()
            .filter(|station| !std::ptr::eq(*station, first) && !quick);
        for (station, seeds) in [(first, if quick { 1 } else { SEEDS })]
            .into_iter()
            .chain(others.map(|s| (s, 1)))
        {
            for seed in 1..=seeds {
                let mut run = Vec::new();
                for (window, number) in windows.iter().zip(0..) {
                    let replay = replay(&replayed, station, window, seed << 32 | number);
                    run.extend(replay.latencies.iter().map(|l| (l.disk, l.latency_ns)));
                    if runs.is_empty() {
                        unmeasured += replay.unmeasured;
                        demand_ns += replay.demand_sum_ns;
                        count = run.len();
                    }
                }
                runs.push(run);
            }
        }
        let any_closed = !quick && disks.iter().any(|disk| disk.is_closed());
        let unqueued = any_closed.then(|| {
            let station = first.without_queue();
            let of_window = |window| replay(&replayed, &station, window, 1).latencies;
            let latencies = windows.iter().flat_map(of_window);
            latencies.map(|l| (l.disk, l.latency_ns)).collect()
        });
        let span: f64 = windows.iter().map(|w| (w.end - w.start) as f64).sum();
        let [limit, _] = device.channels();
        Prediction {
            runs,
            unqueued,
            unmeasured_share: unmeasured as f64 / (count as f64).max(1.0),
            utilisation: limit.map(|_| (demand_ns / span / first.channels as f64).min(1.0)),
        }
    }

    /// The number of simulations.
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The simulated latencies of a disk, or of all.
    pub(super) fn latencies(&self, run: usize, disk: Option<usize>) -> Vec<Nanos> {
        latencies(&self.runs[run % self.runs.len()], disk)
    }

    /// Those without waiting; none without a closed loop.
    fn unqueued_latencies(&self, disk: Option<usize>) -> Vec<Nanos> {
        let unqueued = self.unqueued.as_ref();
        unqueued.map_or(Vec::new(), |run| latencies(run, disk))
    }

    /// The objective of a disk, or of all, with its interval; `None` without requests.
    pub fn estimate(
        &self,
        disk: Option<usize>,
        objective: LatencyObjective,
        error_factor: f64,
    ) -> Option<LatencyEstimate> {
        let runs = (0..self.runs.len()).map(|run| self.latencies(run, disk));
        estimate(runs, self.unqueued_latencies(disk), objective, error_factor)
    }
}

/// The latencies of a disk, or of all.
fn latencies(run: &[(usize, Nanos)], disk: Option<usize>) -> Vec<Nanos> {
    let of = run.iter();
    let of = of.filter(|(of, _)| disk.is_none_or(|disk| *of == disk));
    of.map(|(_, latency)| *latency).collect()
}

/// The objective of all requests of several devices. The models of the devices are varied together.
pub fn pooled(
    predictions: &[&Prediction],
    objective: LatencyObjective,
    error_factor: f64,
) -> Option<LatencyEstimate> {
    let runs = predictions.iter().map(|p| p.runs.len()).max().unwrap_or(0);
    let run = |run| {
        let of = predictions.iter().map(move |p| p.latencies(run, None));
        of.flatten().collect::<Vec<_>>()
    };
    // Where no device has a closed loop, there is nothing beside the runs.
    let any_closed = predictions.iter().any(|p| p.unqueued.is_some());
    let lowest = |p: &&Prediction| match p.unqueued {
        Some(_) => p.unqueued_latencies(None),
        None => p.latencies(0, None),
    };
    let unqueued = predictions.iter().filter(|_| any_closed).flat_map(lowest);
    let unqueued = unqueued.collect();
    estimate((0..runs).map(run), unqueued, objective, error_factor)
}

fn estimate(
    runs: impl Iterator<Item = Vec<Nanos>>,
    mut unqueued: Vec<Nanos>,
    objective: LatencyObjective,
    error_factor: f64,
) -> Option<LatencyEstimate> {
    let runs = runs.filter(|latencies| !latencies.is_empty());
    let values: Vec<f64> = runs
        .map(|mut latencies| objective.of(&mut latencies))
        .collect();
    let of_unqueued = match unqueued.is_empty() {
        true => f64::INFINITY,
        false => objective.of(&mut unqueued),
    };
    let least = values.iter().copied().fold(of_unqueued, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    Some(LatencyEstimate {
        value_ns: *values.first()?,
        interval_ns: [least / error_factor, most * error_factor],
    })
}

/// The recorded latencies in the windows.
pub fn recorded_latencies(disks: &[&PreparedDisk], windows: &[Range<Nanos>]) -> Vec<Nanos> {
    let all = windows.iter().flat_map(|window| recorded(disks, window));
    all.map(|(_, latency_ns)| latency_ns).collect()
}
