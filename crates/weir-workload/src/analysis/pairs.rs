//! [`PairTally`]: joint distributions: seek distance, length or requests in flight against latency.
//!
//! The two-dimensional histograms that section 3.6 of Ahmad 2007 proposes. One dimension has the
//! limits of `vscsiStats`; the latency has four cells per power of two, from 1 µs to 17 s. A class
//! of operations takes 52 kB from its first request with a latency.

use serde::{Serialize, Serializer};
use weir_model::{Op, SECTOR_BYTES};
use weir_sketch::{Axis, Grid};

use crate::metric::{Class, Metric};
use crate::track::{Issue, Step};

/// Latency cells per power of two, as a power of two.
const LATENCY_BITS: u32 = 2;

/// The first limit of the latency: 2^10 ns.
const LATENCY_POWER_MIN: u32 = 10;

/// The last limit: 2^34 ns.
const LATENCY_POWER_MAX: u32 = 34;

/// The measure that is paired with the latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pair {
    /// The distance from the previous request, in sectors; for one operation, from the previous one
    /// of that operation.
    SeekLatency,
    /// The length, bytes.
    LengthLatency,
    /// The requests in flight at the issue, itself included.
    OutstandingLatency,
}

impl Pair {
    /// All, in display order.
    pub const ALL: [Pair; 3] = [
        Pair::SeekLatency,
        Pair::LengthLatency,
        Pair::OutstandingLatency,
    ];

    /// The measure along the first axis; the second is the latency in ns.
    pub fn metric(self) -> Metric {
        match self {
            Pair::SeekLatency => Metric::Seek,
            Pair::LengthLatency => Metric::Length,
            Pair::OutstandingLatency => Metric::Outstanding,
        }
    }

    fn value(self, issue: &Issue, class: Class) -> Option<i64> {
        match (self, class) {
            (Pair::SeekLatency, Class::All) => issue.seek_sectors,
            (Pair::SeekLatency, Class::Of(_)) => issue.seek_of_op_sectors,
            (Pair::LengthLatency, _) => {
                let sectors = issue.request.sector.and(Some(issue.request.sectors))?;
                Some(sectors.saturating_mul(SECTOR_BYTES))
            }
            (Pair::OutstandingLatency, _) => Some(issue.in_flight),
        }
    }

    fn empty(self) -> Grid {
        let limits = Axis::Limits(self.metric().limits().to_vec());
        let latency = Axis::log_linear(LATENCY_BITS, LATENCY_POWER_MIN, LATENCY_POWER_MAX);
        Grid::new(limits, latency)
    }
}

/// Counts pairs by class of operation. As JSON it is a list of [`PairCounts`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairTally {
    /// By class, then as in [`Pair::ALL`].
    of: [Option<Box<[Grid; 3]>>; Class::ALL.len()],
}

/// The counts of a pair for a class of operations, as plain data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairCounts {
    /// The measure that is paired with the latency.
    pub measure: &'static str,
    /// The operation; `None` for all together.
    pub op: Option<&'static str>,
    /// Upper limits of the measure: bytes, sectors or requests. One more cell is above the last.
    pub limits: Vec<i64>,
    /// Upper limits of the latency; likewise.
    pub latency_limits_ns: Vec<i64>,
    /// Cells that are not empty: number by `limits`, number by `latency_limits_ns`, count.
    pub cells: Vec<(usize, usize, u64)>,
}

impl PairTally {
    /// Adds a step. The latency is from insert to completion if known, else from issue.
    pub fn take(&mut self, step: &Step) {
        let Step::Finished(end) = step else { return };
        let (Some(latency), Some(issue)) = (end.response.total_ns(), &end.issue) else {
            return;
        };
        let mut row = None;
        let mut columns = [None::<(i64, usize)>; Pair::ALL.len()];
        for class in [Class::All, Class::Of(issue.request.op)] {
            let grids =
                self.of[class.index()].get_or_insert_with(|| Box::new(Pair::ALL.map(Pair::empty)));
            let each = Pair::ALL.into_iter().zip(grids.iter_mut());
            for ((pair, grid), found) in each.zip(&mut columns) {
                let Some(value) = pair.value(issue, class) else {
                    continue;
                };
                let covered = "the axes have limits, which cover all values";
                // The axes of all classes are the same, and the axis of the latency is that of all
                // grids.
                let row = *row.get_or_insert_with(|| grid.y().cell(latency).expect(covered));
                let column = match found {
                    Some((before, column)) if *before == value => *column,
                    _ => grid.x().cell(value).expect(covered),
                };
                *found = Some((value, column));
                grid.add_to_cell(column, row, 1);
            }
        }
    }

    /// The counts of a pair; `None` when no request of the class ended with a latency.
    pub fn grid(&self, pair: Pair, class: Class) -> Option<&Grid> {
        let at = Pair::ALL.iter().position(|p| *p == pair)?;
        self.of[class.index()].as_ref().map(|grids| &grids[at])
    }

    /// Removes the numbers of requests in flight if they are unreliable.
    pub fn clear_outstanding(&mut self) {
        let is_outstanding = |pair: &Pair| *pair == Pair::OutstandingLatency;
        let at = Pair::ALL.iter().position(is_outstanding);
        let at = at.expect("it is one of the pairs");
        for grids in self.of.iter_mut().flatten() {
            grids[at] = Pair::OutstandingLatency.empty();
        }
    }

    /// All counts, as plain data.
    pub fn result(&self) -> Vec<PairCounts> {
        let named = Pair::ALL
            .into_iter()
            .flat_map(|p| Class::ALL.map(|class| (p, class)));
        let counts = named.filter_map(|(pair, class)| {
            let grid = self.grid(pair, class)?;
            let (Axis::Limits(limits), Axis::Limits(latency)) = (grid.x(), grid.y()) else {
                unreachable!("a pair's axes are fixed");
            };
            Some(PairCounts {
                measure: pair.metric().name(),
                op: class.op().map(Op::as_str),
                limits: limits.clone(),
                latency_limits_ns: latency.clone(),
                cells: grid.cells().collect(),
            })
        });
        counts.collect()
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        let grids = self.of.iter().flatten().flat_map(|grids| grids.iter());
        grids.map(|grid| grid.bytes() + size_of::<Grid>()).sum()
    }
}

impl Serialize for PairTally {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.result().serialize(serializer)
    }
}
