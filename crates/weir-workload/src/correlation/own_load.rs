//! [`at_equal_own_load`]: whether the latency of a disk rises with the load of another one while
//! its own load is the same.
//!
//! The intervals of the disk are divided into strata of similar own load. In each, its latencies in
//! the intervals with more load of the other disk are compared with those in intervals with less,
//! by the rank-sum test; the strata are combined as by van Elteren (1960, "On the combination of
//! independent two-sample tests of Wilcoxon").

use crate::analysis::timeline::{Interval, Timeline};
use crate::evidence::Evidence;
use crate::interference::{INTERVALS_MIN, RATIO_MIN, Z};
use crate::ranks::{median, rank_sum};

/// The intervals of a stratum, and the number of strata.
const STRATUM_INTERVALS: usize = 12;
const STRATA_MAX: usize = 5;

/// Where the own load differs by more, it is not equal.
const OWN_RATIO: std::ops::RangeInclusive<f64> = 0.87..=1.15;

/// The comparison of one disk's latencies.
#[derive(Clone, Debug, PartialEq)]
pub struct EqualLoad {
    /// The latency with more load of the other disk, divided by that with less.
    pub latency_ratio: f64,
    /// The same of the own load.
    pub own_ratio: f64,
    /// Standard deviations above what chance gives.
    pub z: f64,
    /// Intervals with more load of the other disk, and with less.
    pub intervals: [usize; 2],
}

/// An interval of the disk: its load, its mean latency, and the load of the other one.
#[derive(Clone, Copy)]
struct Loaded {
    own: f64,
    latency_ns: f64,
    other: f64,
}

/// Compares; `None` with too few intervals, or where the own load changes with that of the other
/// disk even within the strata.
pub fn at_equal_own_load(victim: &Timeline, other: &Timeline) -> Option<EqualLoad> {
    let load = |i: &Interval| i.requests() as f64;
    let loaded = victim.intervals.iter().filter_map(|interval| {
        let at = |i: &Interval| i.ts_ns.cmp(&interval.ts_ns);
        let found = other.intervals.binary_search_by(at).ok();
        Some(Loaded {
            own: load(interval),
            latency_ns: interval.latency_mean_ns()?,
            other: found.map_or(0.0, |at| load(&other.intervals[at])),
        })
    });
    let mut loaded: Vec<Loaded> = loaded.collect();
    loaded.sort_by(|a, b| a.own.total_cmp(&b.own));
    let strata = (loaded.len() / STRATUM_INTERVALS).clamp(1, STRATA_MAX);
    let mut sums = StratumSums::default();
    for stratum in loaded.chunks(loaded.len().div_ceil(strata).max(1)) {
        sums.add(stratum);
    }
    sums.result()
}

/// The sums over strata.
#[derive(Default)]
struct StratumSums {
    intervals: [usize; 2],
    excess: f64,
    variance: f64,
    /// The sums of the weights, and of the logarithms of the ratios by weight.
    weight: f64,
    log_latency: f64,
    log_own: f64,
}

impl StratumSums {
    fn add(&mut self, stratum: &[Loaded]) {
        let others: Vec<f64> = stratum.iter().map(|i| i.other).collect();
        let middle = median(&others);
        let mut parts = divided(stratum, |i| i.other > middle);
        if parts[0].is_empty() {
            parts = divided(stratum, |i| i.other >= middle);
        }
        if parts.iter().any(|part| part.len() < 2) {
            return;
        }
        let of = |value: fn(&Loaded) -> f64| {
            parts
                .each_ref()
                .map(|p| p.iter().map(value).collect::<Vec<f64>>())
        };
        let latencies = of(|i| i.latency_ns);
        let [more, less] = latencies.each_ref().map(|l| median(l));
        let [own_more, own_less] = of(|i| i.own).map(|own| median(&own));
        if less <= 0.0 || own_less <= 0.0 {
            return;
        }
        let (excess, variance) = rank_sum(&latencies[0], &latencies[1]);
        let weight = stratum.len() as f64;
        self.excess += excess / (weight + 1.0);
        self.variance += variance / (weight + 1.0).powi(2);
        self.weight += weight;
        self.log_latency += weight * (more / less).ln();
        self.log_own += weight * (own_more / own_less).ln();
        for (sum, part) in self.intervals.iter_mut().zip(&parts) {
            *sum += part.len();
        }
    }

    fn result(&self) -> Option<EqualLoad> {
        let ratio = |log: f64| (log / self.weight).exp();
        let enough = self.intervals.iter().all(|n| *n >= INTERVALS_MIN);
        let is_equal = enough && OWN_RATIO.contains(&ratio(self.log_own));
        is_equal.then(|| EqualLoad {
            latency_ratio: ratio(self.log_latency),
            own_ratio: ratio(self.log_own),
            z: match self.variance > 0.0 {
                true => self.excess / self.variance.sqrt(),
                false => 0.0,
            },
            intervals: self.intervals,
        })
    }
}

fn divided(stratum: &[Loaded], is_more: impl Fn(&Loaded) -> bool) -> [Vec<Loaded>; 2] {
    let (more, less) = stratum.iter().partition(|i| is_more(i));
    [more, less]
}

impl EqualLoad {
    /// Whether the latency rises.
    pub fn is_slower(&self) -> bool {
        self.latency_ratio >= RATIO_MIN && self.z >= Z[1]
    }

    /// Its numbers.
    pub fn evidence(&self) -> Vec<Evidence> {
        vec![
            Evidence::new("equal_load_latency_ratio", self.latency_ratio),
            Evidence::new("equal_load_own_ratio", self.own_ratio),
            Evidence::new("equal_load_z", self.z),
            Evidence::new("equal_load_intervals_more", self.intervals[0] as f64),
            Evidence::new("equal_load_intervals_less", self.intervals[1] as f64),
        ]
    }
}
