//! [`Grid`]: counts of pairs of values, a two-dimensional histogram.
//!
//! The authors of `vscsiStats` wanted this to relate seek distance to latency (Ahmad 2007, section
//! 3.6). Memory is 8 bytes per cell, independent of the number of pairs.

use crate::axis::Axis;

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
        self.add_to_cell(column, row, count);
    }

    /// Counts a pair of values in these cells of the axes.
    ///
    /// # Panics
    /// If there are no such cells.
    pub fn add_to_cell(&mut self, column: usize, row: usize, count: u64) {
        self.x.mark_used(column);
        self.y.mark_used(row);
        let rows = self.y.cells();
        assert!(row < rows, "the axis has {rows} cells");
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
