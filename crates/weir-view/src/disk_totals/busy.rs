//! [`Busy`]: the time during which a disk had at least one request.

use std::collections::VecDeque;

/// Maximum number of busy times that are stored separately. The part of a request before the oldest
/// of them is not counted: such a request spans more than this number of the disk's idle times.
const SPANS_MAX: usize = 1_024;

/// The length of the union of the times from insert to complete of all requests so far.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// The latest busy times, ascending and disjoint, `(from, to]`.
    spans: VecDeque<(i64, i64)>,
    /// The start of the stored times.
    sealed_until: Option<i64>,
    total_ns: i64,
}

impl Busy {
    /// Adds a request that was in flight from `from` to `to`. Requests are added in order of
    /// completion; the part before a discarded busy time is not counted.
    pub fn add(&mut self, from: i64, to: i64) {
        let mut from = self.sealed_until.map_or(from, |sealed| from.max(sealed));
        if from >= to {
            return;
        }
        let mut to = to;
        while let Some(&(began, ended)) = self.spans.back().filter(|(_, ended)| *ended >= from) {
            self.spans.pop_back();
            self.total_ns -= ended - began;
            (from, to) = (from.min(began), to.max(ended));
        }
        self.total_ns += to - from;
        self.spans.push_back((from, to));
        if self.spans.len() > SPANS_MAX {
            self.sealed_until = self.spans.pop_front().map(|(_, ended)| ended);
        }
    }

    /// The busy time so far, ns.
    pub fn total_ns(&self) -> i64 {
        self.total_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(spans: &[(i64, i64)]) -> i64 {
        let mut busy = Busy::default();
        spans.iter().for_each(|(from, to)| busy.add(*from, *to));
        busy.total_ns()
    }

    #[test]
    fn overlaps_count_once() {
        assert_eq!(busy(&[(0, 10), (5, 15), (20, 30)]), 25);
        // A slow request covers earlier idle times.
        assert_eq!(busy(&[(0, 10), (20, 30), (40, 50), (5, 60)]), 60);
        assert_eq!(busy(&[(0, 10), (10, 20)]), 20);
        assert_eq!(busy(&[(7, 7), (9, 3)]), 0);
    }

    #[test]
    fn it_is_the_union_of_random_spans() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let mut spans: Vec<(i64, i64)> = (0..60)
                .map(|_| {
                    let to = random.i64(0..1_000);
                    (to - random.i64(0..40), to)
                })
                .collect();
            spans.sort_by_key(|s| s.1);
            let covered = |t: &i64| spans.iter().any(|(from, to)| from < t && t <= to);
            let expected = (-100..=1_000).filter(covered).count() as i64;
            assert_eq!(busy(&spans), expected, "{spans:?}");
        }
    }

    #[test]
    fn memory_is_bounded_and_the_total_never_falls() {
        let mut busy = Busy::default();
        for i in 0..3 * SPANS_MAX as i64 {
            let before = busy.total_ns();
            busy.add(10 * i, 10 * i + 5);
            assert!(busy.total_ns() == before + 5 && busy.spans.len() <= SPANS_MAX);
        }
        let before = busy.total_ns();
        busy.add(0, 30 * SPANS_MAX as i64);
        assert!(busy.total_ns() > before);
    }
}
