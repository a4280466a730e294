//! [`Arrivals`]: how requests come: by the clock, at random, or in bursts; and whether they wait for each
//! other.

use serde::Serialize;
use weir_model::{NANOS_PER_SECOND, Nanos};

use super::bursts::Bursts;
use super::parallelism::Parallelism;
use crate::evidence::REQUESTS_MIN;
use crate::track::Step;

/// How requests come. Times are between successive requests of any kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Arrivals {
    /// Requests per second, from the first to the last.
    pub rate_mean_per_s: Option<f64>,
    /// Mean time between requests.
    pub interarrival_mean_ns: Option<f64>,
    /// Standard deviation over mean of the times between requests: 0 for a clock, 1 for a Poisson process.
    pub interarrival_cv: Option<f64>,
    /// How far successive times between requests resemble each other, from -1 to 1: 0 for independent ones.
    pub interarrival_correlation: Option<f64>,
    /// What it looks like; `None` where it is between or there are too few requests.
    pub process: Option<Process>,
    /// Whether requests wait for those before them; `None` where the outstanding requests do not tell.
    pub source: Option<Source>,
}

/// A kind of arrival process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Process {
    /// As by a clock: times between requests vary by less than half their mean, and so do counts.
    Regular,
    /// Independently at random: their variation is near 1, and counts are dispersed like it.
    Poisson,
    /// In bursts: times vary by more than their mean, or counts are dispersed more than twice as much as at
    /// random.
    Bursty,
}

/// Where requests come from, as queueing theory has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A fixed number of clients each of which waits for its answer: the number of requests in flight is
    /// nearly constant while there is work. A faster disk is used for more requests.
    Closed,
    /// Requests come whether or not earlier ones have finished: the number in flight varies freely.
    Open,
}

/// Takes requests in.
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
    /// Takes a step in.
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

    /// What was seen, with what the other analyses say of it.
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

/// By the variation of the gaps, and by the dispersion: too much counts on every scale; too little only on
/// those that hold some requests each, as on shorter ones a clock looks like chance.
fn process(cv: f64, bursts: &Bursts) -> Option<Process> {
    let dispersion = bursts.scales.iter().map(|s| s.index_of_dispersion);
    let most = dispersion.fold(0.0, f64::max);
    let told = bursts.scales.iter().filter(|s| s.requests_mean >= 2.0);
    let told = told.map(|s| s.index_of_dispersion);
    let (least, most_told) = told.fold((f64::INFINITY, 0.0), |(least, most), d| {
        (f64::min(least, d), f64::max(most, d))
    });
    match () {
        () if cv > 1.3 || most > 2.0 => Some(Process::Bursty),
        () if cv < 0.5 && most_told < 0.5 => Some(Process::Regular),
        () if (0.7..=1.3).contains(&cv) && least >= 0.5 => Some(Process::Poisson),
        () => None,
    }
}

/// A closed source keeps its number of requests in flight. What requests of an open one find in flight
/// varies at least about as much as its mean, as that of a Poisson process does.
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
