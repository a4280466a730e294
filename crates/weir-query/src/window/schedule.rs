//! [`Schedule`]: the rows of a window by the instant at which they leave it, if that is not the
//! order of arrival.

use std::collections::BTreeMap;

/// Approximate number of buckets for the rows of one window.
const BUCKETS: i64 = 1024;

/// Slots of rows by when they leave. Rows are put into buckets of instants, and a bucket is sorted
/// when it becomes the first: rows are added nearly in order, and most are never compared with each
/// other.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Instants that share a bucket.
    width: i64,
    /// Never empty; in the first one the next to leave is the last.
    buckets: BTreeMap<i64, Vec<Leaving>>,
    rows: usize,
}

/// When a row leaves, and its slot.
pub(super) type Leaving = (i64, u32);

impl Schedule {
    /// No rows yet; each row stays at most `size` instants.
    pub(super) fn new(size: i64) -> Schedule {
        Schedule {
            width: (size / BUCKETS).max(1),
            buckets: BTreeMap::new(),
            rows: 0,
        }
    }

    /// Adds rows; the caller calls [`Schedule::take_until`] afterwards.
    pub(super) fn add(&mut self, rows: impl Iterator<Item = Leaving>) {
        let mut rows = rows.peekable();
        while let Some((at, _)) = rows.peek() {
            let number = at.div_euclid(self.width);
            let bucket = self.buckets.entry(number).or_default();
            let before = bucket.len();
            let here = |row: &Leaving| row.0.div_euclid(self.width) == number;
            while let Some(row) = rows.next_if(here) {
                bucket.push(row);
            }
            self.rows += bucket.len() - before;
        }
    }

    /// Removes and returns the rows that leave at or before `upto`, in the order in which they
    /// leave.
    pub(super) fn take_until(&mut self, upto: i64) -> Vec<Leaving> {
        let mut out = Vec::new();
        while let Some(mut entry) = self.buckets.first_entry() {
            let bucket = entry.get_mut();
            bucket.sort_unstable_by(|a, b| b.cmp(a));
            let stay = bucket.partition_point(|(at, _)| *at > upto);
            out.extend(bucket.drain(stay..).rev());
            if stay > 0 {
                break;
            }
            entry.remove();
        }
        self.rows -= out.len();
        out
    }

    /// The first instant at which a row leaves.
    pub(super) fn first(&self) -> Option<i64> {
        let (_, bucket) = self.buckets.first_key_value()?;
        bucket.last().map(|(at, _)| *at)
    }

    /// The last instant up to which no more than about `rows_max` rows leave; `None` if there are
    /// not that many.
    pub(super) fn bound_span(&self, rows_max: usize) -> Option<i64> {
        let mut rows = 0;
        for (i, (number, bucket)) in self.buckets.iter().enumerate() {
            if rows + bucket.len() > rows_max {
                return Some(match i {
                    0 => bucket[bucket.len() - 1 - rows_max].0 - 1,
                    _ => number * self.width - 1,
                });
            }
            rows += bucket.len();
        }
        None
    }

    /// Approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.rows * size_of::<Leaving>() + self.buckets.len() * size_of::<(i64, Vec<Leaving>)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_leave_in_time_order_for_any_insertion_order() {
        let mut schedule = Schedule::new(10_000);
        let ats = [5, 90, 40, -7, 9_000, 41, 40];
        schedule.add(ats.into_iter().zip(0..));
        let none: [Leaving; 0] = [];
        assert_eq!(schedule.take_until(-8), none);
        assert_eq!(schedule.first(), Some(-7));
        assert_eq!(schedule.take_until(40), [(-7, 3), (5, 0), (40, 2), (40, 6)]);
        schedule.add([(42, 9)].into_iter());
        assert_eq!(schedule.take_until(41), [(41, 5)]);
        assert_eq!(
            schedule.take_until(i64::MAX - 1),
            [(42, 9), (90, 1), (9_000, 4)]
        );
        assert_eq!((schedule.first(), schedule.rows), (None, 0));
    }

    #[test]
    fn a_step_ends_before_too_many_rows_expire() {
        let mut schedule = Schedule::new(10_240);
        schedule.add([(11, 0), (12, 1), (13, 2), (500, 3), (900, 4)].into_iter());
        assert!(schedule.take_until(0).is_empty());
        assert_eq!(schedule.bound_span(1), Some(11));
        assert_eq!(schedule.bound_span(3), Some(499));
        assert_eq!(schedule.bound_span(5), None);
    }
}
