//! [`AddressTally`]: sectors read and written by time and address.
//!
//! The plots of figures 8 and 9 of Ouarnoughi 2014 as counts: sectors by 128 time intervals and 128
//! address ranges, both doubled as needed to cover time and addresses. An operation takes 131 kB
//! from its first request on.

use serde::{Serialize, Serializer};
use weir_model::{Nanos, Op, SECTOR_BYTES};
use weir_sketch::{Axis, Grid};

use crate::metric::Class;
use crate::track::Step;

/// The number of time intervals.
const COLUMNS: usize = 128;

/// The shortest interval: about 1 ms.
const COLUMN_NS_MIN: i64 = 1 << 20;

/// The number of address ranges.
const ROWS: usize = 128;

/// The shortest range: 4 KiB.
const ROW_SECTORS_MIN: i64 = 8;

/// Counts sectors by time and address, for each operation. All have the same axes: the time of the
/// issue in ns, and the sector. As JSON it is [`AddressCounts`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddressTally {
    /// By [`Class::index`]; unused for all operations together.
    of: [Option<Box<Grid>>; Class::ALL.len()],
}

/// Sectors by time and address, as plain data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AddressCounts {
    /// The start of the first column.
    pub began_ns: Nanos,
    /// The length of a column.
    pub column_ns: Nanos,
    /// The start of the first row.
    pub first_byte: i64,
    /// The length of a row.
    pub row_bytes: i64,
    /// The counts of each operation.
    pub ops: Vec<OpCounts>,
}

/// The sectors of one operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpCounts {
    /// The operation.
    pub op: &'static str,
    /// Nonempty cells: column, row, sectors.
    pub cells: Vec<(usize, usize, u64)>,
}

impl AddressTally {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        let Step::Issued(issue) = step else { return };
        let request = &issue.request;
        let (Some(first), 1..) = (request.sector, request.sectors) else {
            return;
        };
        let last = first.saturating_add(request.sectors - 1);
        let class = Class::Of(request.op).index();
        if self.of[class].is_none() {
            // With the axes of the other operations.
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

    /// All counts, as plain data; `None` without requests that have sectors.
    pub fn result(&self) -> Option<AddressCounts> {
        let any = self.of.iter().flatten().next()?;
        let span = |axis: &Axis| match (axis.span(0), axis) {
            ((Some(least), _), Axis::Growing(growing)) => (least, growing.width()),
            _ => unreachable!("both axes grow"),
        };
        let ((began_ns, column_ns), (first_sector, row_sectors)) = (span(any.x()), span(any.y()));
        let ops = Op::ALL.into_iter().filter_map(|op| {
            Some(OpCounts {
                op: op.as_str(),
                cells: self.grid(op)?.cells().collect(),
            })
        });
        Some(AddressCounts {
            began_ns,
            column_ns,
            first_byte: first_sector.saturating_mul(SECTOR_BYTES),
            row_bytes: row_sectors.saturating_mul(SECTOR_BYTES),
            ops: ops.collect(),
        })
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        let grids = self.of.iter().flatten();
        grids.map(|grid| grid.bytes() + size_of::<Grid>()).sum()
    }
}

impl Serialize for AddressTally {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.result().serialize(serializer)
    }
}

fn axes() -> (Axis, Axis) {
    (
        Axis::growing(COLUMNS, COLUMN_NS_MIN),
        Axis::growing(ROWS, ROW_SECTORS_MIN),
    )
}

/// Counts the sectors of each row, at most [`ROWS`].
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
