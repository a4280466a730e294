//! [`OverTime`]: one metric of each disk by interval: a heat map over time.

use weir_model::Nanos;
use weir_sketch::{Axis, Grid};
use weir_workload::{Class, Distribution, Metric, MetricUnit, Subject};

use super::counted::CountedHistograms;

/// Maximum number of disks; further ones are left out, and counted.
const SUBJECTS_MAX: usize = 64;

/// Maximum number of columns; beyond it, pairs of columns are merged.
pub const COLUMNS_MAX: usize = 4_096;

/// Rows for times: two to a power of two, from 2^10 ns (1 us) to 2^34 ns (17 s).
const TIME_ROWS: (u32, u32, u32) = (1, 10, 34);

/// The counts of each interval, by disk.
#[derive(Clone, Debug)]
pub struct OverTime {
    metric: Metric,
    interval_ns: Nanos,
    columns_max: usize,
    /// The start of the first column.
    started_at: Option<Nanos>,
    columns: usize,
    rows: Axis,
    subjects: Vec<(Subject, Vec<Vec<u64>>)>,
    beyond: u64,
}

impl OverTime {
    /// An empty map. Columns have width `interval_ns`, which doubles whenever more than
    /// `columns_max` would be needed.
    pub fn new(metric: Metric, interval_ns: Nanos, columns_max: usize) -> OverTime {
        let (bits, from, to) = TIME_ROWS;
        OverTime {
            metric,
            interval_ns,
            columns_max: columns_max.clamp(2, COLUMNS_MAX),
            started_at: None,
            columns: 0,
            rows: match metric.measure() {
                MetricUnit::Nanoseconds => Axis::log_linear(bits, from, to),
                _ => Axis::Limits(metric.limits().to_vec()),
            },
            subjects: Vec::new(),
            beyond: 0,
        }
    }

    /// Adds the counts of an interval.
    pub fn take(&mut self, counted: &CountedHistograms) {
        let started_at = *self.started_at.get_or_insert(counted.since);
        let mut column = (counted.since - started_at).max(0) / self.interval_ns;
        while column >= self.columns_max as i64 {
            self.halve();
            column /= 2;
        }
        let column = column as usize;
        self.columns = self.columns.max(column + 1);
        for (subject, histograms) in &counted.subjects {
            let of = histograms.of(self.metric, Class::All);
            let known = self.subjects.iter().position(|(s, _)| s == subject);
            let at = match known {
                Some(at) => at,
                None if self.subjects.len() >= SUBJECTS_MAX => {
                    self.beyond += of.count;
                    continue;
                }
                None => {
                    self.subjects.push((*subject, Vec::new()));
                    self.subjects.len() - 1
                }
            };
            let columns = &mut self.subjects[at].1;
            if columns.len() <= column {
                columns.resize(column + 1, vec![0; self.rows.cells()]);
            }
            add(&mut columns[column], &self.rows, of);
        }
    }

    /// Merges pairs of columns.
    fn halve(&mut self) {
        self.interval_ns = self.interval_ns.saturating_mul(2);
        self.columns = self.columns.div_ceil(2);
        for (_, columns) in &mut self.subjects {
            let pairs = columns.chunks(2).map(|pair| {
                let mut sum = pair[0].clone();
                for more in &pair[1..] {
                    sum.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
                }
                sum
            });
            *columns = pairs.collect();
        }
    }

    /// The metric.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// The start of the first column, if there are counts.
    pub fn started_at(&self) -> Option<Nanos> {
        self.started_at
    }

    /// The number of requests of disks beyond the maximum.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// A grid for each disk: the first axis is the time since the start of the first column, ns,
    /// the second that of the metric.
    pub fn grids(&self) -> Vec<(Subject, Grid)> {
        let ends = (1..self.columns as i64).map(|i| i.saturating_mul(self.interval_ns));
        let time = Axis::Limits(ends.collect());
        let grid = |(subject, columns): &(Subject, Vec<Vec<u64>>)| {
            let mut grid = Grid::new(time.clone(), self.rows.clone());
            for (column, rows) in columns.iter().enumerate() {
                let started_at = self.interval_ns.saturating_mul(column as i64);
                for (row, count) in rows.iter().enumerate().filter(|(_, n)| **n > 0) {
                    grid.add(
                        started_at.saturating_add(1),
                        within(&self.rows, row),
                        *count,
                    );
                }
            }
            (*subject, grid)
        };
        self.subjects.iter().map(grid).collect()
    }
}

/// A value within a row.
fn within(rows: &Axis, row: usize) -> i64 {
    match rows.span(row) {
        (_, Some(most)) => most,
        (least, None) => least.unwrap_or(0),
    }
}

/// Adds a distribution to a column.
fn add(column: &mut [u64], rows: &Axis, of: &Distribution) {
    if of.metric.measure() != MetricUnit::Nanoseconds {
        column
            .iter_mut()
            .zip(&of.bins)
            .for_each(|(sum, n)| *sum += n);
        return;
    }
    for (bin, count) in of.log.bins() {
        let (least, most) = weir_sketch::LogBins::span(bin);
        // A bin of the distribution is at most an eighth of a row.
        if let Some(row) = rows.cell(least + (most - least) / 2) {
            column[row] += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_workload::Histograms;

    use super::*;

    fn counted(since: Nanos, latencies: &[i64]) -> CountedHistograms {
        let mut histograms = Histograms::default();
        for ns in latencies {
            histograms.of_mut(Metric::Latency, Class::All).add(*ns);
        }
        CountedHistograms {
            since,
            at: since + 10,
            closest_of: 16,
            subjects: vec![(Subject::default(), histograms)],
            lost: Vec::new(),
            unreliable: Vec::new(),
        }
    }

    #[test]
    fn columns_are_intervals_and_two_become_one_when_there_are_too_many() {
        let mut over = OverTime::new(Metric::Latency, 10, 4);
        over.take(&counted(100, &[5_000, 5_000]));
        over.take(&counted(110, &[9_000_000]));
        over.take(&counted(130, &[5_000]));
        let (_, grid) = over.grids().remove(0);
        assert_eq!(grid.x().cells(), 4);
        let sums = |grid: &Grid| -> Vec<u64> {
            let cells = 0..grid.x().cells();
            cells.map(|c| grid.column(c).iter().sum()).collect()
        };
        assert_eq!(sums(&grid), [2, 1, 0, 1]);
        over.take(&counted(140, &[5_000]));
        let (_, grid) = over.grids().remove(0);
        assert_eq!(sums(&grid), [3, 1, 1]);
        let row = grid.y().cell(5_000).unwrap();
        assert_eq!((grid.count(0, row), grid.count(1, row)), (2, 1));
        assert_eq!(over.started_at(), Some(100));
    }
}
