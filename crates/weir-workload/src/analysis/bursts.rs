//! [`Bursts`]: burstiness of requests on every time scale.
//!
//! Requests are counted in intervals of 1 ms, 2 ms, 4 ms and so on. The **index of dispersion for
//! counts** of a scale is the variance of its counts over their mean: 1 at every scale for a
//! Poisson process, 0 for a clock, and growing with the scale where bursts come in bursts (Gusella
//! 1991, "Characterizing the variability of arrival processes with indexes of dispersion"). All
//! scales are kept in one pass: two intervals of a scale make one of the next.

use serde::Serialize;
use weir_model::{NANOS_PER_SECOND, Nanos};

use crate::track::Step;

/// The shortest interval.
pub const SCALE_NS_MIN: Nanos = 1_000_000;

/// The number of scales, each twice the previous one: up to an interval of 2.3 hours.
const SCALES: usize = 24;

/// The smallest number of intervals of a scale.
const INTERVALS_MIN: u64 = 16;

/// The smallest number of scales for an exponent.
const SCALES_MIN: usize = 5;

/// The burstiness of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bursts {
    /// The scales with at least 16 complete intervals, the shortest first.
    pub scales: Vec<Scale>,
    /// The most requests in an interval of about a second (1,024 ms), divided by the mean.
    pub peak_to_mean_1s: Option<f64>,
    /// An estimate of the Hurst parameter from the growth of the index of dispersion with the
    /// scale, as its logarithm has slope 2H - 1 for a self-similar process: about 0.5 without long
    /// memory, towards 1 where bursts come on all scales. A coarse estimate, biased where the rate
    /// has a trend.
    pub hurst_by_dispersion: Option<Hurst>,
}

/// Counts in intervals of one length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scale {
    /// The length.
    pub interval_ns: Nanos,
    /// Complete intervals, including empty ones.
    pub intervals: u64,
    /// The mean number of requests per interval.
    pub requests_mean: f64,
    /// The largest number of requests in an interval.
    pub requests_max: u64,
    /// Variance over mean of the requests per interval.
    pub index_of_dispersion: f64,
}

/// An estimate of the Hurst parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hurst {
    /// The estimate.
    pub estimate: f64,
    /// The number of scales used.
    pub scales: usize,
    /// The share of the variation among those scales that the fitted line explains (R²), from 0 to
    /// 1.
    pub fit: f64,
}

/// Counts requests.
#[derive(Clone, Debug, Default)]
pub struct BurstTally {
    began: Option<Nanos>,
    /// The current interval and its count so far.
    interval: i64,
    count: u64,
    scales: [Counts; SCALES],
}

/// The counts of one scale.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    intervals: u64,
    sum: f64,
    squares: f64,
    max: u64,
    /// The first half of an interval of the next scale.
    half: Option<u64>,
}

impl BurstTally {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        let Step::Issued(issue) = step else { return };
        let ts = issue.request.ts;
        let began = *self.began.get_or_insert(ts);
        let interval = ts.saturating_sub(began).max(0) / SCALE_NS_MIN;
        if interval > self.interval {
            let done = std::mem::take(&mut self.count);
            self.add(0, done, 1);
            self.add(0, 0, (interval - self.interval - 1) as u64);
            self.interval = interval;
        }
        self.count += 1;
    }

    /// Adds `times` intervals with `count` requests each to `scale`, and pairs of them to the next.
    /// A large `times` occurs only for empty intervals.
    fn add(&mut self, scale: usize, count: u64, times: u64) {
        if times == 0 || scale == SCALES {
            return;
        }
        let counts = &mut self.scales[scale];
        counts.intervals += times;
        counts.sum += (count * times) as f64;
        counts.squares += (count * count) as f64 * times as f64;
        counts.max = counts.max.max(count);
        let mut left = times;
        let whole = counts.half.take().map(|half| half + count);
        left -= u64::from(whole.is_some());
        if left % 2 == 1 {
            counts.half = Some(count);
        }
        if let Some(whole) = whole {
            self.add(scale + 1, whole, 1);
        }
        self.add(scale + 1, 2 * count, left / 2);
    }

    /// The result.
    pub fn result(&self) -> Bursts {
        let lengths = (0..SCALES).map(|scale| SCALE_NS_MIN << scale);
        let scales = self.scales.iter().zip(lengths);
        let scales: Vec<Scale> = scales.filter_map(|(c, length)| c.result(length)).collect();
        let second = |s: &&Scale| s.interval_ns >= NANOS_PER_SECOND;
        let second = scales.iter().find(second);
        Bursts {
            peak_to_mean_1s: second.map(|s| s.requests_max as f64 / s.requests_mean),
            hurst_by_dispersion: hurst(&scales),
            scales,
        }
    }
}

impl Counts {
    fn result(&self, interval_ns: Nanos) -> Option<Scale> {
        let n = self.intervals as f64;
        if self.intervals < INTERVALS_MIN || self.sum == 0.0 {
            return None;
        }
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        Some(Scale {
            interval_ns,
            intervals: self.intervals,
            requests_mean: mean,
            requests_max: self.max,
            index_of_dispersion: variance / mean,
        })
    }
}

/// Fits a line to the logarithms of dispersion and length. Scales with less than one request per
/// interval always look like a Poisson process and are excluded.
fn hurst(scales: &[Scale]) -> Option<Hurst> {
    let is_conclusive = |s: &&Scale| s.requests_mean >= 1.0 && s.index_of_dispersion > 0.0;
    let points: Vec<(f64, f64)> = scales
        .iter()
        .filter(is_conclusive)
        .map(|s| ((s.interval_ns as f64).ln(), s.index_of_dispersion.ln()))
        .collect();
    if points.len() < SCALES_MIN {
        return None;
    }
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let cross: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let across: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let along: f64 = points.iter().map(|p| (p.1 - y).powi(2)).sum();
    let slope = cross / across;
    Some(Hurst {
        estimate: ((slope + 1.0) / 2.0).clamp(0.0, 1.0),
        scales: points.len(),
        fit: match along > 1e-9 {
            true => cross * cross / (across * along),
            false => 1.0,
        },
    })
}
