//! [`AddressTally`]: where on the disk how much was read and written, and when: time against address.
//!
//! What figures 8 and 9 of Ouarnoughi 2014 plot as points, counted: sectors by 128 spans of time and 128 spans
//! of addresses, both of which double as time goes on and as more of the disk is touched. An operation takes
//! 131 kB from its first request on.

use weir_model::Op;
use weir_sketch::{Axis, Grid};

use crate::metric::Class;
use crate::track::Step;

/// Spans of time.
const COLUMNS: usize = 128;

/// The shortest: about 1 ms.
const COLUMN_NS_MIN: i64 = 1 << 20;

/// Spans of addresses.
const ROWS: usize = 128;

/// The shortest: 4 KiB.
const ROW_SECTORS_MIN: i64 = 8;

/// Counts sectors by time and address, for each operation. All have the same axes: the time of the issue in ns,
/// and the sector.
#[derive(Clone, Debug, Default)]
pub struct AddressTally {
    /// By [`Class::index`]; there is none for all of them.
    of: [Option<Box<Grid>>; Class::ALL.len()],
}

impl AddressTally {
    /// Takes a step in.
    pub fn take(&mut self, step: &Step) {
        let Step::Issued(issue) = step else { return };
        let request = &issue.request;
        let (Some(first), 1..) = (request.sector, request.sectors) else {
            return;
        };
        let last = first.saturating_add(request.sectors - 1);
        let class = Class::Of(request.op).index();
        if self.of[class].is_none() {
            // With the axes that the others have grown to.
            let like = self.of.iter().flatten().next();
            let (x, y) = like.map_or_else(axes, |grid| (grid.x().clone(), grid.y().clone()));
            self.of[class] = Some(Box::new(Grid::new(x, y)));
        }
        for grid in self.of.iter_mut().flatten() {
            grid.cover(request.ts, first);
            grid.cover(request.ts, last);
        }
        if let Some(grid) = &mut self.of[class] {
            spread(grid, request.ts, first, last);
        }
    }

    /// The sectors of an operation; `None` when there were none.
    pub fn grid(&self, op: Op) -> Option<&Grid> {
        self.of[Class::Of(op).index()].as_deref()
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        let grids = self.of.iter().flatten();
        grids.map(|grid| grid.bytes() + size_of::<Grid>()).sum()
    }
}

fn axes() -> (Axis, Axis) {
    (
        Axis::growing(COLUMNS, COLUMN_NS_MIN),
        Axis::growing(ROWS, ROW_SECTORS_MIN),
    )
}

/// Counts the sectors of each row, of which there are no more than [`ROWS`].
fn spread(grid: &mut Grid, ts: i64, first: i64, last: i64) {
    let mut at = first;
    loop {
        let row = grid.y().cell(at).expect("the grid covers the request");
        let (_, greatest) = grid.y().span(row);
        let end = greatest.map_or(last, |greatest| greatest.min(last));
        grid.add(ts, at, (end - at) as u64 + 1);
        if end == last {
            return;
        }
        at = end + 1;
    }
}
