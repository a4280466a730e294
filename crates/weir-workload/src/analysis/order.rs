//! [`Order`]: the sequential share, the number of interleaved streams, and the random share.
//!
//! Ahmad 2007 (section 3.1) infers interleaved streams from two histograms: distances to the
//! previous request and to the closest of the last 16. Both shares are reported. They do not give
//! the number of streams, and miss more than 16 interleaved ones; so streams are also tracked one
//! by one ([`runs`](super::runs)).

use serde::Serialize;
use weir_model::{Op, SECTOR_BYTES};
use weir_sketch::Frequent;

use super::runs::{Continued, Course, DEPTHS, Runs};
use crate::track::{Issue, Step};

/// The order of a subject's reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Order {
    /// Reads and writes together.
    pub all: Sequence,
    /// Reads.
    pub reads: Sequence,
    /// Writes.
    pub writes: Sequence,
}

/// The order of some requests. Shares are of these requests, from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sequence {
    /// The number of requests.
    pub requests: u64,
    /// The share that continues a run forward: starts where another request of the run ended. A run
    /// has at least four requests; its first does not continue it.
    pub sequential_share: Option<f64>,
    /// The same by bytes.
    pub sequential_bytes_share: Option<f64>,
    /// The share that continues a run backward.
    pub reverse_share: Option<f64>,
    /// The share that continues a run with a constant forward distance and gaps.
    pub strided_share: Option<f64>,
    /// The share that starts where a recent request of the same operation started.
    pub repeated_share: Option<f64>,
    /// The share of all others.
    pub random_share: Option<f64>,
    /// The number of runs.
    pub runs: u64,
    /// The mean number of requests per run.
    pub run_requests_mean: Option<f64>,
    /// The number of interleaved runs: 1 for consecutive runs, 0 without runs.
    ///
    /// With each request of a run, the other runs that had requests since its last are counted. `k`
    /// is the greatest number for which at least 1 in 2·k requests of runs met k - 1 others: what k
    /// streams give that take turns evenly or at random. A stream that has fewer than a few per
    /// cent of the requests does not count.
    pub interleaved_streams: u32,
    /// The distance between the first sectors of successive requests of the runs that are not
    /// forward, where one has most of those requests.
    pub stride_sectors: Option<i64>,
    /// The share at distance 1 from the previous request, as in the histogram of seek distances.
    pub seek_sequential_share: Option<f64>,
    /// The share at distance 1 from the closest of the last 16 requests of any operation.
    pub closest_sequential_share: Option<f64>,
}

/// Collects requests.
#[derive(Clone, Debug)]
pub struct OrderTally {
    runs: Runs,
    reads: SequenceTally,
    writes: SequenceTally,
    /// Requests of all runs by the number of others that had requests since its last.
    depths: [u64; DEPTHS],
    closest_sequential: u64,
    seek_sequential: u64,
}

#[derive(Clone, Debug)]
struct SequenceTally {
    requests: u64,
    sectors: u64,
    sequential: u64,
    sequential_sectors: u64,
    reverse: u64,
    strided: u64,
    repeated: u64,
    runs: u64,
    depths: [u64; DEPTHS],
    strides: Frequent<i64>,
    seek_sequential: u64,
}

/// Strides that are counted.
const STRIDES_MAX: usize = 16;

impl Default for OrderTally {
    fn default() -> OrderTally {
        OrderTally {
            runs: Runs::default(),
            reads: SequenceTally::new(),
            writes: SequenceTally::new(),
            depths: [0; DEPTHS],
            closest_sequential: 0,
            seek_sequential: 0,
        }
    }
}

impl OrderTally {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        let Step::Issued(issue) = step else { return };
        let request = &issue.request;
        let tally = match request.op {
            Op::Read => &mut self.reads,
            Op::Write => &mut self.writes,
            _ => return,
        };
        let Some(first) = request.sector else { return };
        let place = self.runs.take(request.op, first, request.sectors);
        tally.take(issue, place.repeated);
        if let Some(continued) = &place.continued {
            tally.go_on(continued);
            if continued.requests > 0 {
                self.depths[continued.depth.min(DEPTHS - 1)] += 1;
            }
        }
        self.seek_sequential += u64::from(issue.seek_sectors == Some(1));
        self.closest_sequential += u64::from(issue.seek_closest_sectors == Some(1));
    }

    /// The result.
    pub fn result(&self) -> Order {
        let mut all = self.reads.clone();
        all.merge(&self.writes);
        all.depths = self.depths;
        all.seek_sequential = self.seek_sequential;
        let whole = all.requests as f64;
        let share = (all.requests > 0).then(|| self.closest_sequential as f64 / whole);
        Order {
            all: Sequence {
                closest_sequential_share: share,
                ..all.result()
            },
            reads: self.reads.result(),
            writes: self.writes.result(),
        }
    }
}

impl SequenceTally {
    fn new() -> SequenceTally {
        SequenceTally {
            requests: 0,
            sectors: 0,
            sequential: 0,
            sequential_sectors: 0,
            reverse: 0,
            strided: 0,
            repeated: 0,
            runs: 0,
            depths: [0; DEPTHS],
            strides: Frequent::new(STRIDES_MAX),
            seek_sequential: 0,
        }
    }

    fn take(&mut self, issue: &Issue, repeated: bool) {
        self.requests += 1;
        self.sectors += issue.request.sectors.max(0) as u64;
        self.repeated += u64::from(repeated);
        self.seek_sequential += u64::from(issue.seek_of_op_sectors == Some(1));
    }

    fn go_on(&mut self, continued: &Continued) {
        match continued.course {
            Course::Forward => {
                self.sequential += continued.requests;
                self.sequential_sectors += continued.sectors;
            }
            Course::Backward => self.reverse += continued.requests,
            Course::Strided => self.strided += continued.requests,
        }
        self.runs += u64::from(continued.new_run);
        self.runs -= u64::from(continued.joined_run);
        if continued.requests > 0 {
            self.depths[continued.depth_of_op.min(DEPTHS - 1)] += 1;
        }
        if let Some(stride) = continued.stride_sectors {
            self.strides.add(stride, continued.requests);
        }
    }

    fn merge(&mut self, other: &SequenceTally) {
        self.requests += other.requests;
        self.sectors += other.sectors;
        self.sequential += other.sequential;
        self.sequential_sectors += other.sequential_sectors;
        self.reverse += other.reverse;
        self.strided += other.strided;
        self.repeated += other.repeated;
        self.runs += other.runs;
        for (stride, count) in other.strides.top(STRIDES_MAX) {
            self.strides.add(stride, count.most);
        }
    }

    fn result(&self) -> Sequence {
        if self.requests == 0 {
            return Sequence::default();
        }
        let share = |part: u64| Some(part as f64 / self.requests as f64);
        let in_runs = self.sequential + self.reverse + self.strided;
        let random = self.requests.saturating_sub(in_runs + self.repeated);
        let bytes = |sectors: u64| sectors as f64 * SECTOR_BYTES as f64;
        let (top, others) = (self.strides.top(1), self.reverse + self.strided);
        let stride = top.first().filter(|(_, count)| 2 * count.most > others);
        Sequence {
            requests: self.requests,
            sequential_share: share(self.sequential),
            sequential_bytes_share: (self.sectors > 0)
                .then(|| bytes(self.sequential_sectors) / bytes(self.sectors)),
            reverse_share: share(self.reverse),
            strided_share: share(self.strided),
            repeated_share: share(self.repeated),
            random_share: share(random),
            runs: self.runs,
            run_requests_mean: (self.runs > 0)
                .then(|| (in_runs + self.runs) as f64 / self.runs as f64),
            interleaved_streams: interleaved(&self.depths),
            stride_sectors: stride.map(|(stride, _)| *stride),
            seek_sequential_share: share(self.seek_sequential),
            closest_sequential_share: None,
        }
    }
}

/// The number of interleaved runs, by [`Sequence::interleaved_streams`].
fn interleaved(depths: &[u64; DEPTHS]) -> u32 {
    let all: u64 = depths.iter().sum();
    let deep = |k: usize| depths[k - 1..].iter().sum::<u64>();
    let turns = (1..=DEPTHS).rev().find(|k| 2 * *k as u64 * deep(*k) >= all);
    match all {
        0 => 0,
        _ => turns.map_or(1, |k| k as u32),
    }
}
