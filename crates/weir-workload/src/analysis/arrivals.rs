//! [`Arrivals`]: the arrival process of requests: periodic, random, or bursty; and whether requests
//! wait for earlier ones.

use serde::Serialize;
use weir_model::{NANOS_PER_SECOND, Nanos};

use super::bursts::Bursts;
use super::parallelism::Parallelism;
use crate::evidence::REQUESTS_MIN;
use crate::track::Step;

/// The arrival process. Times are between successive requests of any kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Arrivals {
    /// Requests per second, from the first to the last.
    pub rate_mean_per_s: Option<f64>,
    /// Mean time between requests.
    pub interarrival_mean_ns: Option<f64>,
    /// Coefficient of variation of the times between requests: 0 for a clock, 1 for a Poisson
    /// process.
    pub interarrival_cv: Option<f64>,
    /// Autocorrelation of successive times between requests, from -1 to 1: 0 for independent ones.
    pub interarrival_correlation: Option<f64>,
    /// The kind of process; `None` if it is between kinds or there are too few requests.
    pub process: Option<Process>,
    /// Whether requests wait for earlier ones; `None` if the number in flight does not show it.
    pub source: Option<Source>,
}

/// A kind of arrival process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Process {
    /// Periodic: times between requests vary by less than half their mean, and so do counts.
    Regular,
    /// Random and independent: the variation of times and the dispersion of counts are near 1.
    Poisson,
    /// Bursty: times vary by more than their mean, or the dispersion of counts is more than twice
    /// that of a random process.
    Bursty,
}

/// The kind of source, in terms of queueing theory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Closed: a fixed number of clients, each of which waits for its response. The number in
    /// flight is nearly constant under load; a faster disk gets more requests.
    Closed,
    /// Open: requests arrive independently of earlier ones; the number in flight varies freely.
    Open,
}

/// Collects requests.
#[derive(Clone, Debug, Default)]
pub struct ArrivalTally {
    first: Option<Nanos>,
    last: Option<Nanos>,
    requests: u64,
    gaps: f64,
    mean: f64,
    /// Sum of squared distances from the mean.
    spread: f64,
    previous: Option<f64>,
    /// Sum of products of successive gaps.
    products: f64,
}

impl ArrivalTally {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        let Step::Issued(issue) = step else { return };
        self.first.get_or_insert(issue.request.ts);
        self.last = Some(issue.request.ts);
        self.requests += 1;
        let Some(gap) = issue.gap_ns else { return };
        let gap = gap as f64;
        self.gaps += 1.0;
        // Welford 1962, "Note on a method for calculating corrected sums of squares and products".
        let distance = gap - self.mean;
        self.mean += distance / self.gaps;
        self.spread += distance * (gap - self.mean);
        if let Some(previous) = self.previous.replace(gap) {
            self.products += previous * gap;
        }
    }

    /// The result, combined with other analyses.
    pub fn result(&self, bursts: &Bursts, parallelism: Option<&Parallelism>) -> Arrivals {
        let (Some(first), Some(last)) = (self.first, self.last) else {
            return Arrivals::default();
        };
        let span = last.saturating_sub(first) as f64;
        let variance = self.spread / self.gaps.max(1.0);
        let enough = self.gaps >= 2.0 && self.mean > 0.0;
        let cv = enough.then(|| variance.sqrt() / self.mean);
        let pairs = self.gaps - 1.0;
        let covariance = self.products / pairs.max(1.0) - self.mean * self.mean;
        Arrivals {
            rate_mean_per_s: (span > 0.0).then(|| self.gaps * NANOS_PER_SECOND as f64 / span),
            interarrival_mean_ns: (self.gaps > 0.0).then_some(self.mean),
            interarrival_cv: cv,
            interarrival_correlation: (pairs >= 2.0 && variance > 0.0)
                .then(|| (covariance / variance).clamp(-1.0, 1.0)),
            process: cv
                .filter(|_| self.requests >= REQUESTS_MIN)
                .and_then(|cv| process(cv, bursts)),
            source: parallelism.and_then(source),
        }
    }
}

/// Uses the variation of the gaps and the dispersion of the counts: a high dispersion counts on
/// every scale, a low one only on scales with several requests per interval, since shorter ones
/// make a clock look random.
fn process(cv: f64, bursts: &Bursts) -> Option<Process> {
    let dispersion = bursts.scales.iter().map(|s| s.index_of_dispersion);
    let most = dispersion.fold(0.0, f64::max);
    let dispersions = bursts.scales.iter().filter(|s| s.requests_mean >= 2.0);
    let dispersions = dispersions.map(|s| s.index_of_dispersion);
    let (least, greatest) = dispersions.fold((f64::INFINITY, 0.0), |(least, most), d| {
        (f64::min(least, d), f64::max(most, d))
    });
    match () {
        () if cv > 1.3 || most > 2.0 => Some(Process::Bursty),
        () if cv < 0.5 && greatest < 0.5 => Some(Process::Regular),
        () if (0.7..=1.3).contains(&cv) && least >= 0.5 => Some(Process::Poisson),
        () => None,
    }
}

/// A closed source keeps a constant number of requests in flight. With an open source, the number
/// varies at least about as much as its mean, as for a Poisson process.
fn source(parallelism: &Parallelism) -> Option<Source> {
    if parallelism.requests < REQUESTS_MIN || !parallelism.is_reliable() {
        return None;
    }
    let (steady, busy) = (parallelism.modal_share, parallelism.busy_share);
    let others = parallelism.at_issue_mean - 1.0;
    let variance = (parallelism.at_issue_cv * parallelism.at_issue_mean).powi(2);
    match () {
        () if steady >= 0.8 && busy >= 0.8 => Some(Source::Closed),
        () if others >= 0.1 && variance >= 0.8 * others => Some(Source::Open),
        () => None,
    }
}
