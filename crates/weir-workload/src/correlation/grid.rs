//! [`Grid`]: the points of the current windows by cell, to find those near a point.
//!
//! A cell is at least as wide as two points whose correlation reaches the threshold can be apart,
//! so all such points are in the cell of a point or in those next to it (Zhu and Shasha 2002,
//! section 4.2). Within cells the first numbers of all points are adjacent in memory.

use std::ops::Range;

use super::series::{FIRST_MAX, HEAD_MAX};

/// The numbers of a point that determine its cell.
const DIMENSIONS_MAX: usize = 4;

/// Cells in each dimension.
const SIDE_MAX: usize = 16;

/// Added to the distance, for rounding.
const DISTANCE_SLACK: f64 = 1e-4;

/// Points that are compared at a time.
const TOGETHER_MAX: usize = 128;

/// If fewer than one in this number remain after the first numbers, they are compared one by one.
const FEW_SHARE: usize = 8;

/// The points of windows that end now.
#[derive(Clone, Debug)]
pub struct Grid {
    dimensions: usize,
    side: usize,
    /// The first position of each cell, and the number of points.
    starts: Vec<u32>,
    /// The number of each point, by position.
    numbers: Vec<u32>,
    /// The first numbers of all points by position, one column after the other.
    columns: Vec<Vec<f32>>,
    /// The lengths of the rests of each point.
    rests: [Vec<f32>; 2],
}

/// A point of the grid.
#[derive(Clone, Copy, Debug)]
pub struct GridPoint<'a> {
    /// Identifies it.
    pub number: u32,
    /// Its coefficients.
    pub point: &'a [f32],
    /// The lengths of its rests without its first numbers.
    pub rests: [f32; 2],
}

impl Grid {
    /// A grid of these points, for correlations from `threshold` on.
    pub fn new(points: &[GridPoint<'_>], numbers: usize, threshold: f64) -> Grid {
        let distance = (2.0 * (1.0 - threshold)).sqrt() + DISTANCE_SLACK;
        let side = ((2.0 / distance) as usize).clamp(1, SIDE_MAX);
        let dimensions = numbers.min(DIMENSIONS_MAX);
        let mut grid = Grid {
            dimensions,
            side,
            starts: vec![0; side.pow(dimensions as u32) + 1],
            numbers: vec![0; points.len()],
            columns: vec![vec![0.0; points.len()]; numbers.min(HEAD_MAX)],
            rests: [(); 2].map(|()| vec![0.0; points.len()]),
        };
        let cells: Vec<usize> = points.iter().map(|p| grid.cell(p.point)).collect();
        for cell in &cells {
            grid.starts[cell + 1] += 1;
        }
        for cell in 1..grid.starts.len() {
            grid.starts[cell] += grid.starts[cell - 1];
        }
        let mut next = grid.starts.clone();
        for (point, cell) in points.iter().zip(cells) {
            let at = next[cell] as usize;
            next[cell] += 1;
            grid.numbers[at] = point.number;
            for (rests, rest) in grid.rests.iter_mut().zip(point.rests) {
                rests[at] = rest;
            }
            for (column, x) in grid.columns.iter_mut().zip(point.point) {
                column[at] = *x;
            }
        }
        grid
    }

    /// The coordinate of a number from -1 to 1.
    fn coordinate(&self, x: f32) -> usize {
        let at = (f64::from(x) + 1.0) * 0.5 * self.side as f64;
        (at as usize).min(self.side - 1)
    }

    fn cell(&self, point: &[f32]) -> usize {
        let numbers = point[..self.dimensions].iter();
        numbers.fold(0, |cell, x| cell * self.side + self.coordinate(*x))
    }

    /// The positions of all points in the cells around `point` and around its opposite, as ranges
    /// that do not overlap.
    pub fn near(&self, point: &[f32], ranges: &mut Vec<(u32, u32)>) {
        ranges.clear();
        for sign in [1.0, -1.0] {
            let mut bounds = [(0, 0); DIMENSIONS_MAX];
            for (bound, x) in bounds.iter_mut().zip(&point[..self.dimensions]) {
                let at = self.coordinate(sign * x);
                *bound = (at.saturating_sub(1), (at + 1).min(self.side - 1));
            }
            self.rows(&bounds[..self.dimensions], 0, ranges);
        }
        ranges.sort_unstable();
        let mut kept = 0;
        for at in 1..ranges.len() {
            let (begin, end) = ranges[at];
            if begin <= ranges[kept].1 {
                ranges[kept].1 = ranges[kept].1.max(end);
            } else {
                kept += 1;
                ranges[kept] = (begin, end);
            }
        }
        ranges.truncate(kept + 1);
    }

    /// Adjacent cells of the last dimension are adjacent in memory: one range.
    fn rows(&self, bounds: &[(usize, usize)], cell: usize, ranges: &mut Vec<(u32, u32)>) {
        let [(low, high), rest @ ..] = bounds else {
            return;
        };
        if rest.is_empty() {
            let at = |coordinate: usize| self.starts[cell * self.side + coordinate];
            let (begin, end) = (at(*low), at(high + 1));
            if begin < end {
                ranges.push((begin, end));
            }
            return;
        }
        for coordinate in *low..=*high {
            self.rows(rest, cell * self.side + coordinate, ranges);
        }
    }

    /// The points at these positions whose correlation with `point` may reach `least` in magnitude,
    /// as far as their first numbers show.
    pub fn candidates(
        &self,
        point: GridPoint<'_>,
        ranges: &[(u32, u32)],
        least: f32,
        found: &mut Vec<u32>,
    ) {
        for &(begin, end) in ranges {
            for at in (begin as usize..end as usize).step_by(TOGETHER_MAX) {
                let end = (at + TOGETHER_MAX).min(end as usize);
                self.candidates_among(point, at..end, least, found);
            }
        }
    }

    /// The same for up to [`TOGETHER_MAX`] positions.
    fn candidates_among(
        &self,
        point: GridPoint<'_>,
        at: Range<usize>,
        least: f32,
        found: &mut Vec<u32>,
    ) {
        let mut sums = [0.0f32; TOGETHER_MAX];
        let sums = &mut sums[..at.len()];
        let (first, later) = self.columns.split_at(FIRST_MAX.min(self.columns.len()));
        add_products(sums, first, point.point, at.start);
        let reaches = |sum: f32, rest: f32, own: f32| sum.abs() + rest * own >= least;
        let [first_rests, rests] = self.rests.each_ref().map(|rests| &rests[at.clone()]);
        let [first_own, own] = point.rests;
        let remaining = sums.iter().zip(first_rests);
        let remaining = remaining.filter(|(sum, rest)| reaches(**sum, **rest, first_own));
        let remaining = remaining.count();
        if remaining == 0 {
            return;
        }
        let numbers = &point.point[first.len()..];
        if remaining >= at.len() / FEW_SHARE {
            for (columns, numbers) in later.chunks(4).zip(numbers.chunks(4)) {
                add_products(sums, columns, numbers, at.start);
            }
            for (i, (sum, rest)) in sums.iter().zip(rests).enumerate() {
                if reaches(*sum, *rest, own) {
                    found.push(self.numbers[at.start + i]);
                }
            }
            return;
        }
        for (i, sum) in sums.iter().enumerate() {
            if !reaches(*sum, first_rests[i], first_own) {
                continue;
            }
            let products = later.iter().zip(numbers);
            let products = products.map(|(column, x)| column[at.start + i] * x);
            if reaches(sum + products.sum::<f32>(), rests[i], own) {
                found.push(self.numbers[at.start + i]);
            }
        }
    }
}

/// Adds the products of up to four columns, from position `at` on, with their numbers.
fn add_products(sums: &mut [f32], columns: &[Vec<f32>], xs: &[f32], at: usize) {
    let part = |column: &'_ Vec<f32>| at..(at + sums.len()).min(column.len());
    if let ([a, b, c, d], [p, q, r, s]) = (columns, xs) {
        let (a, b, c, d) = (&a[part(a)], &b[part(b)], &c[part(c)], &d[part(d)]);
        for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *sum += (a * p + b * q) + (c * r + d * s);
        }
        return;
    }
    for (column, x) in columns.iter().zip(xs) {
        for (sum, y) in sums.iter_mut().zip(&column[at..]) {
            *sum += x * y;
        }
    }
}
