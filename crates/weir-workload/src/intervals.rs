//! [`Intervals`]: a value for each interval of time, in intervals that double so that their number
//! stays bounded.
//!
//! Intervals are aligned to multiples of their length since the epoch, so that those of two
//! subjects can be compared.

use std::collections::VecDeque;
use std::ops::Range;

use weir_model::Nanos;

/// Values by interval.
#[derive(Clone, Debug)]
pub(crate) struct Intervals<T> {
    interval_ns: Nanos,
    intervals_max: i64,
    /// Adds the value of an interval to that of the previous one.
    merge: fn(&mut T, &T),
    /// The number of the first interval since the epoch.
    first: i64,
    /// From the first interval to the last; `None` for one without a value.
    values: VecDeque<Option<T>>,
    /// The interval that was used last, and its index.
    current: (Range<Nanos>, usize),
}

impl<T: Default> Intervals<T> {
    /// Without values. From the first interval to the last there are at most `intervals_max`.
    pub(crate) fn new(
        interval_ns: Nanos,
        intervals_max: i64,
        merge: fn(&mut T, &T),
    ) -> Intervals<T> {
        Intervals {
            interval_ns,
            intervals_max,
            merge,
            first: 0,
            values: VecDeque::new(),
            current: (0..0, 0),
        }
    }

    /// The value of the interval of `ts`, created if needed; all intervals are lengthened first if
    /// there would be too many.
    pub(crate) fn at(&mut self, ts: Nanos) -> &mut T {
        if !self.current.0.contains(&ts) {
            self.find(ts);
        }
        self.values[self.current.1].get_or_insert_default()
    }

    /// The length of an interval.
    pub(crate) fn interval_ns(&self) -> Nanos {
        self.interval_ns
    }

    /// The intervals with a value, in order: the start and the value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Nanos, &T)> {
        let starts = (self.first..).map(|number| number.saturating_mul(self.interval_ns));
        let values = starts.zip(&self.values);
        values.filter_map(|(start, value)| Some((start, value.as_ref()?)))
    }

    /// Makes the interval of `ts` the current one.
    fn find(&mut self, ts: Nanos) {
        let number = loop {
            let number = ts.div_euclid(self.interval_ns);
            if self.values.is_empty() {
                self.first = number;
            }
            let last = self.first + self.values.len().saturating_sub(1) as i64;
            if last.max(number).saturating_sub(self.first.min(number)) < self.intervals_max {
                break number;
            }
            self.lengthen();
        };
        while number < self.first {
            self.first -= 1;
            self.values.push_front(None);
        }
        let index = (number - self.first) as usize;
        if index >= self.values.len() {
            self.values.resize_with(index + 1, || None);
        }
        let start = number.saturating_mul(self.interval_ns);
        self.current = (start..start.saturating_add(self.interval_ns), index);
    }

    fn lengthen(&mut self) {
        self.interval_ns = self.interval_ns.saturating_mul(2);
        let first = self.first.div_euclid(2);
        let numbers = self.first..;
        let mut merged: VecDeque<Option<T>> = VecDeque::new();
        for (number, value) in numbers.zip(std::mem::take(&mut self.values)) {
            let index = (number.div_euclid(2) - first) as usize;
            merged.resize_with(index + 1, || None);
            match (&mut merged[index], value) {
                (Some(whole), Some(part)) => (self.merge)(whole, &part),
                (_, None) => {}
                (none, part) => *none = part,
            }
        }
        (self.first, self.values) = (first, merged);
        self.current = (0..0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_double_and_are_aligned_to_the_epoch() {
        let mut counts = Intervals::new(10, 4, |a: &mut u64, b| *a += b);
        for ts in [-5, 29, 5, 25, 0] {
            *counts.at(ts) += 1;
        }
        let of =
            |counts: &Intervals<u64>| counts.iter().map(|(ts, n)| (ts, *n)).collect::<Vec<_>>();
        assert_eq!(of(&counts), [(-10, 1), (0, 2), (20, 2)]);
        *counts.at(30) += 1;
        assert_eq!(
            (counts.interval_ns(), of(&counts)),
            (20, vec![(-20, 1), (0, 2), (20, 3)])
        );
        *counts.at(-1_000) += 1;
        assert_eq!(counts.interval_ns(), 640);
        assert_eq!(of(&counts), [(-1_280, 1), (-640, 1), (0, 5)]);
    }
}
