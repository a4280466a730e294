//! [`Grid`]: counts of pairs of values, a two-dimensional histogram.
//!
//! The authors of `vscsiStats` wanted this to relate seek distance to latency (Ahmad 2007, section
//! 3.6). Memory is 8 bytes per cell, independent of the number of pairs.

use std::fmt;

use crate::axis::Axis;
use crate::codec::{self, Bytes, SketchDecodeError};

/// The version byte of the encoding.
const VERSION: u8 = 1;

/// The largest number of cells of a grid: 8 MiB.
const CELLS_MAX: usize = 1 << 20;

/// Counts by the cells of two axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    x: Axis,
    y: Axis,
    /// Counts, column by column.
    counts: Vec<u64>,
    total: u64,
}

/// Two grids with different axes cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherAxes;

impl fmt::Display for OtherAxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the grids have different axes")
    }
}

impl std::error::Error for OtherAxes {}

impl Grid {
    /// An empty grid.
    ///
    /// # Panics
    /// If there are more than 2^20 cells.
    pub fn new(x: Axis, y: Axis) -> Grid {
        let cells = x.cells() * y.cells();
        assert!(cells <= CELLS_MAX, "a grid of {cells} cells is too large");
        Grid {
            x,
            y,
            counts: vec![0; cells],
            total: 0,
        }
    }

    /// Counts a pair `count` times.
    pub fn add(&mut self, x: i64, y: i64, count: u64) {
        self.cover(x, y);
        let (Some(column), Some(row)) = (self.x.cell(x), self.y.cell(y)) else {
            unreachable!("the axes cover what they were grown to");
        };
        self.x.mark_used(column);
        self.y.mark_used(row);
        let rows = self.y.cells();
        tally(&mut self.counts[column * rows + row], count);
        tally(&mut self.total, count);
    }

    /// Grows the axes, if they can grow, to cover these values, so that several grids can be
    /// aligned.
    pub fn cover(&mut self, x: i64, y: i64) {
        if let Some(grown) = self.x.grown_to(x) {
            self.move_to(grown, self.y.clone());
        }
        if let Some(grown) = self.y.grown_to(y) {
            self.move_to(self.x.clone(), grown);
        }
    }

    /// The first dimension.
    pub fn x(&self) -> &Axis {
        &self.x
    }

    /// The second dimension.
    pub fn y(&self) -> &Axis {
        &self.y
    }

    /// The count of a cell; 0 if there is no such cell.
    pub fn count(&self, column: usize, row: usize) -> u64 {
        self.column(column).get(row).copied().unwrap_or(0)
    }

    /// The counts of a column, by row; empty if there is no such column.
    pub fn column(&self, column: usize) -> &[u64] {
        let rows = self.y.cells();
        self.counts.chunks_exact(rows).nth(column).unwrap_or(&[])
    }

    /// The sum of all counts.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Adds the counts of `other`.
    ///
    /// # Errors
    /// If the axes differ; growing axes may have grown differently. Nothing is added then.
    pub fn merge(&mut self, other: &Grid) -> Result<(), OtherAxes> {
        if !self.x.is_compatible(&other.x) || !self.y.is_compatible(&other.y) {
            return Err(OtherAxes);
        }
        let (x, y) = (self.x.grown_over(&other.x), self.y.grown_over(&other.y));
        if x.is_some() || y.is_some() {
            let (x, y) = (x.unwrap_or(self.x.clone()), y.unwrap_or(self.y.clone()));
            self.move_to(x, y);
        }
        let (columns, rows) = (other.x.cells_in(&self.x), other.y.cells_in(&self.y));
        for (column, row, count) in other.cells() {
            let (Some(column), Some(row)) = (columns[column], rows[row]) else {
                unreachable!("this grid has grown over the other");
            };
            tally(&mut self.counts[column * self.y.cells() + row], count);
        }
        tally(&mut self.total, other.total);
        Ok(())
    }

    /// The cells that are not empty: column, row, count.
    pub fn cells(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        let rows = self.y.cells();
        let counts = self.counts.iter().enumerate();
        let present = counts.filter(|(_, count)| **count > 0);
        present.map(move |(at, &count)| (at / rows, at % rows, count))
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        let limits = |axis: &Axis| match axis {
            Axis::Limits(limits) => limits.capacity() * size_of::<i64>(),
            Axis::Growing(_) => 0,
        };
        self.counts.capacity() * size_of::<u64>() + limits(&self.x) + limits(&self.y)
    }

    /// Appends the encoded grid: the axes, then for each nonempty cell its distance from the
    /// previous one and its count.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        self.x.encode(out);
        self.y.encode(out);
        codec::put_u64(out, self.cells().count() as u64);
        let mut before = 0;
        for (column, row, count) in self.cells() {
            let at = column * self.y.cells() + row;
            codec::put_u64(out, (at - before) as u64);
            codec::put_u64(out, count);
            before = at;
        }
    }

    /// Decodes a grid written by [`Grid::encode`].
    ///
    /// # Errors
    /// If the bytes are invalid or of another version.
    pub fn decode(bytes: &mut Bytes<'_>) -> Result<Grid, SketchDecodeError> {
        if bytes.byte()? != VERSION {
            return Err(SketchDecodeError("a grid of another version"));
        }
        let (x, y) = (Axis::decode(bytes)?, Axis::decode(bytes)?);
        if x.cells() * y.cells() > CELLS_MAX {
            return Err(SketchDecodeError("a grid exceeds the size limit"));
        }
        let mut grid = Grid::new(x, y);
        let mut at = 0u64;
        for _ in 0..bytes.length(2)? {
            at = at.wrapping_add(bytes.u64()?);
            let cell = usize::try_from(at)
                .ok()
                .and_then(|at| grid.counts.get_mut(at));
            let cell = cell.ok_or(SketchDecodeError("invalid cell"))?;
            let count = bytes.u64()?;
            tally(cell, count);
            tally(&mut grid.total, count);
        }
        let sound = grid
            .cells()
            .all(|(x, y, _)| grid.x.is_used(x) && grid.y.is_used(y));
        match sound {
            true => Ok(grid),
            false => Err(SketchDecodeError("a count outside the used cells")),
        }
    }

    /// Moves the counts to axes that cover a superset of the current range.
    fn move_to(&mut self, x: Axis, y: Axis) {
        let (columns, rows) = (self.x.cells_in(&x), self.y.cells_in(&y));
        let mut moved = vec![0; x.cells() * y.cells()];
        for (column, row, count) in self.cells() {
            let (Some(column), Some(row)) = (columns[column], rows[row]) else {
                unreachable!("the new axes cover the old");
            };
            tally(&mut moved[column * y.cells() + row], count);
        }
        (self.x, self.y, self.counts) = (x, y, moved);
    }
}

/// Adds modulo 2^64, like all weights.
fn tally(sum: &mut u64, count: u64) {
    *sum = sum.wrapping_add(count);
}
