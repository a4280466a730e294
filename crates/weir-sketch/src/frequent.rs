//! [`Frequent`]: the most frequent values of a stream, in a table of fixed size.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi 2005, "Efficient computation of frequent and top-k
//! elements in data streams"): a value in the table is counted; a new value replaces the least
//! frequent one and inherits its count as possible error. The counts are exact while there are no
//! more distinct values than entries.

/// Counts of the most frequent values.
#[derive(Clone, Debug)]
pub struct Frequent<K> {
    entries: usize,
    /// By value, ascending.
    counts: Vec<(K, Frequency)>,
    total: u64,
}

/// The estimated frequency of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frequency {
    /// An upper bound of the frequency.
    pub most: u64,
    /// The largest possible overestimate, at most the total divided by the number of entries.
    pub error: u64,
}

impl<K: Copy + Ord> Frequent<K> {
    /// A table of `entries` entries, at least one.
    pub fn new(entries: usize) -> Frequent<K> {
        Frequent {
            entries: entries.max(1),
            counts: Vec::new(),
            total: 0,
        }
    }

    /// Adds `count` occurrences of `value`.
    pub fn add(&mut self, value: K, count: u64) {
        self.total += count;
        if let Ok(at) = self.position(&value) {
            self.counts[at].1.most += count;
            return;
        }
        let error = match self.counts.len() < self.entries {
            true => 0,
            false => self.evict(),
        };
        let most = error + count;
        let (Ok(at) | Err(at)) = self.position(&value);
        self.counts.insert(at, (value, Frequency { most, error }));
    }

    /// The index of a value, or that at which it belongs.
    fn position(&self, value: &K) -> Result<usize, usize> {
        self.counts.binary_search_by_key(value, |(known, _)| *known)
    }

    /// Removes the least frequent value; returns its count.
    fn evict(&mut self) -> u64 {
        let counts = self.counts.iter().enumerate();
        // On a tie it is the first, which is the least value.
        let least = counts.min_by_key(|(_, (_, count))| count.most);
        let (at, _) = least.expect("a table has an entry");
        self.counts.remove(at).1.most
    }

    /// The number of values added.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The most frequent values, the most frequent first.
    pub fn top(&self, at_most: usize) -> Vec<(K, Frequency)> {
        let mut all = self.counts.clone();
        all.sort_unstable_by_key(|(key, c)| (std::cmp::Reverse(c.most), *key));
        all.truncate(at_most);
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_values_are_counted_exactly() {
        let mut frequent = Frequent::new(4);
        [8, 8, 16, 8, 32].iter().for_each(|v| frequent.add(*v, 1));
        let count = |most| Frequency { most, error: 0 };
        assert_eq!(frequent.top(2), [(8, count(3)), (16, count(1))]);
    }

    proptest! {
        #[test]
        fn a_count_is_off_by_no_more_than_its_error(values in prop::collection::vec(0..40u8, 0..400), entries in 1..16usize) {
            let mut frequent = Frequent::new(entries);
            values.iter().for_each(|v| frequent.add(*v, 1));
            let top = frequent.top(usize::MAX);
            prop_assert!(top.len() <= entries);
            for (value, count) in top {
                let exact = values.iter().filter(|v| **v == value).count() as u64;
                prop_assert!(count.error <= values.len() as u64 / entries as u64);
                prop_assert!(exact <= count.most && count.most - count.error <= exact);
            }
        }
    }
}
