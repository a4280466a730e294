//! [`Pairs`]: histograms of two dimensions, of each disk: proposed in section 3.6 of Ahmad 2007.

use std::collections::HashMap;

use weir_model::{Nanos, SECTOR_BYTES};
use weir_sketch::{Axis, Grid};
use weir_workload::analysis::pairs::{Pair, PairTally};
use weir_workload::little::is_reliable;
use weir_workload::{Class, RequestEvent, Step, Subject, Track};

use super::choice::HistogramChoice;
use super::counted::{CLOSEST_OF, HistogramKey};
use crate::workload::EventConsumer;

/// Maximum number of disks with a histogram; the requests of further ones are counted.
const SUBJECTS_MAX: usize = 256;

/// The number of intervals of time and of address ranges, whose width doubles when more are needed.
const SPANS: usize = 128;

/// The minimum interval of time, about 1 ms, and address range, 4 KiB.
const SPAN_NS_MIN: i64 = 1 << 20;
const SPAN_BYTES_MIN: i64 = 4_096;

/// The two dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Two {
    /// A measure of the request against its latency.
    AgainstLatency(Pair),
    /// Time and address.
    TimeAddress,
}

impl Two {
    /// All, in the order in which they are listed.
    pub const ALL: [Two; 4] = [
        Two::AgainstLatency(Pair::SeekLatency),
        Two::AgainstLatency(Pair::LengthLatency),
        Two::AgainstLatency(Pair::OutstandingLatency),
        Two::TimeAddress,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Two::AgainstLatency(Pair::SeekLatency) => "seekDistance:latency",
            Two::AgainstLatency(Pair::LengthLatency) => "ioLength:latency",
            Two::AgainstLatency(Pair::OutstandingLatency) => "outstandingIOs:latency",
            Two::TimeAddress => "time:address",
        }
    }
}

/// Counts pairs of measures, by disk.
pub struct Pairs {
    two: Two,
    choice: HistogramChoice,
    by: HistogramKey,
    disks: HashMap<Subject, Disk>,
    /// The time at which the first request was issued.
    started_at: Option<Nanos>,
    beyond: u64,
}

struct Disk {
    label: Subject,
    track: Track,
    pairs: PairTally,
    places: Grid,
}

impl Pairs {
    /// No pairs.
    pub fn new(two: Two, choice: HistogramChoice, by: HistogramKey) -> Pairs {
        Pairs {
            two,
            choice,
            by,
            disks: HashMap::new(),
            started_at: None,
            beyond: 0,
        }
    }

    /// The time at which the first request was issued, if there was one.
    pub fn started_at(&self) -> Option<Nanos> {
        self.started_at
    }

    /// The number of events of disks beyond the maximum.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Disks whose number of requests in flight is not reliable, and the ratio of Little's law;
    /// they have no grid for it.
    pub fn unreliable(&self) -> Vec<(Subject, f64)> {
        let unreliable = |disk: &Disk| Some((disk.label, disk.unreliable()?));
        let disks = self.disks.values().filter(|_| self.is_of_depth());
        let mut disks: Vec<(Subject, f64)> = disks.filter_map(unreliable).collect();
        disks.sort_by_key(|(subject, _)| super::counted::name(subject));
        disks
    }

    fn is_of_depth(&self) -> bool {
        self.two == Two::AgainstLatency(Pair::OutstandingLatency)
    }

    /// A grid for each disk. Latencies and times are in ns, times since the first request;
    /// addresses in bytes.
    pub fn grids(&self) -> Vec<(Subject, Grid)> {
        let grid = |disk: &Disk| {
            if self.is_of_depth() && disk.unreliable().is_some() {
                return None;
            }
            let grid = match self.two {
                Two::AgainstLatency(pair) => disk.pairs.grid(pair, Class::All).cloned(),
                Two::TimeAddress => Some(disk.places.clone()),
            };
            Some((disk.label, grid.filter(|grid| grid.total() > 0)?))
        };
        let mut grids: Vec<(Subject, Grid)> = self.disks.values().filter_map(grid).collect();
        grids.sort_by_key(|(subject, _)| super::counted::name(subject));
        grids
    }
}

impl Disk {
    fn unreliable(&self) -> Option<f64> {
        let ratio = self.track.little_ratio();
        ratio.filter(|ratio| !is_reliable(*ratio))
    }
}

impl EventConsumer for Pairs {
    fn take(&mut self, subject: Subject, event: RequestEvent) -> bool {
        if !self.choice.has(&subject) {
            return true;
        }
        let key = self.by.of(subject);
        if !self.disks.contains_key(&key) {
            if self.disks.len() >= SUBJECTS_MAX {
                self.beyond += 1;
                return true;
            }
            let disk = Disk {
                // As in `Counting`.
                label: match self.by {
                    HistogramKey::Disk => subject,
                    _ => key,
                },
                track: Track::new(CLOSEST_OF),
                pairs: PairTally::default(),
                places: Grid::new(
                    Axis::growing(SPANS, SPAN_NS_MIN),
                    Axis::growing(SPANS, SPAN_BYTES_MIN),
                ),
            };
            self.disks.insert(key, disk);
        }
        let started_at = *self.started_at.get_or_insert(event.ts());
        let disk = self.disks.get_mut(&key).expect("it was put there");
        let step = disk.track.take(&event);
        match (self.two, &step) {
            (Two::AgainstLatency(_), step) => disk.pairs.take(step),
            (Two::TimeAddress, Step::Issued(issue)) => {
                if let Some(sector) = issue.request.sector {
                    let (at, byte) = (
                        issue.request.ts.saturating_sub(started_at),
                        sector.saturating_mul(SECTOR_BYTES),
                    );
                    disk.places.add(at, byte, 1);
                }
            }
            (Two::TimeAddress, Step::Finished(_) | Step::Lost { .. }) => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use weir_model::Op;
    use weir_workload::{IssuedRequest, Response};

    use super::*;

    /// Two requests, the second in sequence, of 1 ms and 2 ms.
    fn events() -> Vec<RequestEvent> {
        let request = |ts, id, sector| {
            RequestEvent::Issued(IssuedRequest {
                ts,
                id,
                op: Op::Read,
                sector: Some(sector),
                sectors: 8,
            })
        };
        let response = |ts, id, latency| {
            RequestEvent::Finished(Response {
                ts,
                id,
                op: Op::Read,
                wait_ns: None,
                service_ns: Some(latency),
                latency_ns: Some(latency),
                failed: false,
            })
        };
        vec![
            request(1_000, 1, 0),
            response(1_001_000, 1, 1_000_000),
            request(2_000_000_000, 2, 8),
            response(2_002_000_000, 2, 2_000_000),
        ]
    }

    fn grid(two: Two) -> Grid {
        let mut pairs = Pairs::new(two, HistogramChoice::default(), HistogramKey::Disk);
        for event in events() {
            assert!(pairs.take(Subject::default(), event));
        }
        assert_eq!(pairs.started_at(), Some(1_000));
        pairs.grids().remove(0).1
    }

    #[test]
    fn measures_fall_together() {
        let seeks = grid(Two::AgainstLatency(Pair::SeekLatency));
        assert_eq!(seeks.total(), 1, "the first has no predecessor");
        let cell = (
            seeks.x().cell(1).unwrap(),
            seeks.y().cell(2_000_000).unwrap(),
        );
        assert_eq!(seeks.count(cell.0, cell.1), 1);
        let places = grid(Two::TimeAddress);
        let at = |ns, byte| {
            let cell = (places.x().cell(ns).unwrap(), places.y().cell(byte).unwrap());
            places.count(cell.0, cell.1)
        };
        assert_eq!((at(0, 0), at(1_999_999_000, 4_096)), (1, 1));
    }
}
