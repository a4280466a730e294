//! [`Counter`]: fills [`Histograms`] from events, in constant memory.
//!
//! The counting rules are those of `vscsiStats`, as its own output shows them. At the issue of a
//! request: length, seek distance, closest seek distance, inter-arrival time, outstanding requests;
//! at its end: wait, service and latency. `All` has its own predecessor for seek and inter-arrival,
//! and so has each operation.

use weir_model::SECTOR_BYTES;

use crate::distribution::Binned;
use crate::event::{RequestEvent, Response};
use crate::histograms::Histograms;
use crate::metric::{Class, Metric};
use crate::track::{End, Issue, Step, Track};

/// Counts the requests of one subject.
///
/// ```
/// use weir_model::Op;
/// use weir_workload::{Class, Counter, RequestEvent, Metric, IssuedRequest};
///
/// let mut counter = Counter::new(16);
/// for (ts, sector) in [(0, 100), (7_000, 108)] {
///     let (id, sectors) = (sector, 8);
///     let request = IssuedRequest { ts, id, op: Op::Read, sector: Some(sector), sectors };
///     counter.take(&RequestEvent::Issued(request));
/// }
/// let seeks = counter.histograms().of(Metric::Seek, Class::All);
/// assert_eq!((seeks.count, seeks.min), (1, 1), "the second follows the first");
/// assert_eq!(counter.histograms().of(Metric::Outstanding, Class::Of(Op::Read)).max, 2);
/// ```
#[derive(Clone, Debug)]
pub struct Counter {
    track: Track,
    histograms: Histograms,
}

impl Counter {
    /// Without requests; see [`Track::new`] for `closest_of`.
    pub fn new(closest_of: usize) -> Counter {
        Counter {
            track: Track::new(closest_of),
            histograms: Histograms::default(),
        }
    }

    /// Adds an event and returns it with its context. Events must be in timestamp order.
    pub fn take(&mut self, event: &RequestEvent) -> Step {
        let step = self.track.take(event);
        self.histograms.count(&step);
        step
    }

    /// The counts since the start or the last reset.
    pub fn histograms(&self) -> &Histograms {
        &self.histograms
    }

    /// Resets the counts. The last requests and those in flight are retained, as in `vscsiStats`,
    /// so that the next request has a distance.
    pub fn reset(&mut self) {
        self.histograms = Histograms::default();
    }

    /// See [`Track::little_ratio`].
    pub fn little_ratio(&self) -> Option<f64> {
        self.track.little_ratio()
    }

    /// The number of requests that were removed before their end; see [`Track::forgotten`].
    pub fn forgotten(&self) -> u64 {
        self.track.forgotten()
    }
}

impl Histograms {
    /// Counts an event by the rules.
    pub fn count(&mut self, step: &Step) {
        match step {
            Step::Issued(issue) => self.count_issue(issue),
            Step::Finished(end) => self.count_end(end),
            Step::Lost { .. } => {}
        }
    }

    fn count_issue(&mut self, issue: &Issue) {
        let op = Class::Of(issue.request.op);
        if issue.request.sector.is_some() {
            let bytes = issue.request.sectors.saturating_mul(SECTOR_BYTES);
            self.add_for(Metric::Length, issue.request.op, bytes);
        }
        self.add_for(Metric::Outstanding, issue.request.op, issue.in_flight);
        for (metric, class, value) in [
            (Metric::Seek, Class::All, issue.seek_sectors),
            (Metric::Seek, op, issue.seek_of_op_sectors),
            (Metric::SeekClosest, Class::All, issue.seek_closest_sectors),
            (Metric::Interarrival, Class::All, issue.gap_ns),
            (Metric::Interarrival, op, issue.gap_of_op_ns),
        ] {
            if let Some(value) = value {
                self.of_mut(metric, class).add(value);
            }
        }
    }

    fn count_end(&mut self, end: &End) {
        let Response { op, .. } = end.response;
        for (metric, value) in [
            (Metric::Wait, end.response.wait_ns),
            (Metric::Service, end.response.service_ns),
            (Metric::Latency, end.response.latency_ns),
        ] {
            if let Some(value) = value {
                self.add_for(metric, op, value);
            }
        }
        // The time in flight of this request is unknown, and so are the counts that include it.
        if let (false, Some(issue)) = (end.response.is_timed(), end.issue) {
            for class in [Class::All, Class::Of(issue.request.op)] {
                self.of_mut(Metric::Outstanding, class)
                    .remove(issue.in_flight);
            }
        }
    }

    fn add_for(&mut self, metric: Metric, op: weir_model::Op, value: i64) {
        let binned = Binned::new(metric, value);
        for class in [Class::All, Class::Of(op)] {
            self.of_mut(metric, class).add_binned(&binned);
        }
    }
}
