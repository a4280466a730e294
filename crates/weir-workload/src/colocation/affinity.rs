//! [`DiskAffinity`]: why two disks should share a device, or should not: their loads over time, and
//! the kinds of their requests.

use std::ops::Range;

use serde::Serialize;
use weir_model::{Nanos, Op};

use super::measure::PreparedDisk;

/// The intervals in which loads are compared.
const INTERVALS: usize = 60;

/// The load of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DiskLoadShape {
    /// Requests per second.
    pub rate_iops: f64,
    /// The greatest rate of an interval, over the mean.
    pub peak_ratio: f64,
    /// The share of reads.
    pub read_share: f64,
    /// The share of requests that continue their predecessor.
    pub sequential_share: f64,
    /// The mean length of a request.
    pub bytes_mean: f64,
    /// Whether its requests follow its completions.
    pub closed_loop: bool,
    /// The greatest number in flight.
    pub in_flight_max: usize,
}

/// Two loads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DiskAffinity {
    /// Pearson's coefficient of their rates over time; `None` if one is constant.
    pub load_correlation: Option<f64>,
    /// The greatest rate of both together over the sum of the greatest rates: 1 if they peak
    /// together, one half if two equal peaks never coincide.
    pub peak_overlap: f64,
    /// The difference of the shares of sequential requests.
    pub sequential_difference: f64,
    /// The difference of the shares of reads.
    pub read_difference: f64,
}

impl DiskLoadShape {
    /// Of the requests in `window`.
    pub fn of(disk: &PreparedDisk, window: &Range<Nanos>) -> DiskLoadShape {
        let requests = &disk.stream.requests[disk.stream.within(window)];
        let count = (requests.len() as f64).max(1.0);
        let reads = requests
            .iter()
            .filter(|request| request.op == Op::Read)
            .count();
        let end = |i: usize| Some(requests[i].sector? + requests[i].sectors);
        let continues =
            |i: &usize| requests[*i].sector.is_some() && requests[*i].sector == end(i - 1);
        let sequential = (1..requests.len()).filter(continues).count();
        let sectors: f64 = requests.iter().map(|request| request.sectors as f64).sum();
        let rates = rates(disk, window);
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        DiskLoadShape {
            rate_iops: requests.len() as f64 * 1e9 / (window.end - window.start).max(1) as f64,
            peak_ratio: rates.iter().copied().fold(0.0, f64::max) / mean.max(f64::MIN_POSITIVE),
            read_share: reads as f64 / count,
            sequential_share: sequential as f64 / count,
            bytes_mean: 512.0 * sectors / count,
            closed_loop: disk.process.closed,
            in_flight_max: disk.process.in_flight_max,
        }
    }
}

impl DiskAffinity {
    /// Of two disks in `window`.
    pub fn of(a: &PreparedDisk, b: &PreparedDisk, window: &Range<Nanos>) -> DiskAffinity {
        let (x, y) = (rates(a, window), rates(b, window));
        let most = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
        let both: Vec<f64> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        let [of_a, of_b] = [a, b].map(|disk| DiskLoadShape::of(disk, window));
        DiskAffinity {
            load_correlation: correlation(&x, &y),
            peak_overlap: most(&both) / (most(&x) + most(&y)).max(f64::MIN_POSITIVE),
            sequential_difference: (of_a.sequential_share - of_b.sequential_share).abs(),
            read_difference: (of_a.read_share - of_b.read_share).abs(),
        }
    }
}

/// The number of requests in each interval.
fn rates(disk: &PreparedDisk, window: &Range<Nanos>) -> Vec<f64> {
    let length = ((window.end - window.start) / INTERVALS as Nanos).max(1);
    let mut rates = vec![0.0; INTERVALS];
    for request in &disk.stream.requests[disk.stream.within(window)] {
        let at = usize::try_from((request.arrival_ns - window.start) / length).unwrap_or(0);
        rates[at.min(INTERVALS - 1)] += 1.0;
    }
    rates
}

fn correlation(x: &[f64], y: &[f64]) -> Option<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mx, my) = (mean(x), mean(y));
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        let both = x.iter().zip(y);
        both.map(|(x, y)| of(x - mx, y - my)).sum()
    };
    let product = (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
    (product > 0.0).then(|| sum(&|x, y| x * y) / product)
}
