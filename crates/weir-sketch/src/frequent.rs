//! [`Frequent`]: the most frequent values of a stream, in a table of fixed size.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi 2005, "Efficient computation of frequent and top-k
//! elements in data streams"): while a value has a place it is counted; a new one takes the place of the
//! least frequent, and inherits its count as its own possible error. As long as there are no more distinct
//! values than places the counts are exact.

use std::collections::HashMap;
use std::hash::Hash;

/// Counts of the most frequent values.
#[derive(Clone, Debug)]
pub struct Frequent<K> {
    places: usize,
    counts: HashMap<K, Count>,
    total: u64,
}

/// How often a value came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// At most so often.
    pub most: u64,
    /// By so much that may be too many; at most the total over the number of places.
    pub error: u64,
}

impl<K: Copy + Eq + Hash + Ord> Frequent<K> {
    /// A table of `places`, at least one.
    pub fn new(places: usize) -> Frequent<K> {
        Frequent {
            places: places.max(1),
            counts: HashMap::new(),
            total: 0,
        }
    }

    /// Takes `count` copies of `value` in.
    pub fn add(&mut self, value: K, count: u64) {
        self.total += count;
        if let Some(known) = self.counts.get_mut(&value) {
            known.most += count;
            return;
        }
        let error = match self.counts.len() < self.places {
            true => 0,
            false => self.evict(),
        };
        let most = error + count;
        self.counts.insert(value, Count { most, error });
    }

    /// Frees the place of the least frequent value; its count.
    fn evict(&mut self) -> u64 {
        let least = self.counts.iter().min_by_key(|(key, c)| (c.most, **key));
        let (&key, &count) = least.expect("a table has a place");
        self.counts.remove(&key);
        count.most
    }

    /// How many values came.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The most frequent values, the most frequent first.
    pub fn top(&self, at_most: usize) -> Vec<(K, Count)> {
        let mut all: Vec<(K, Count)> = self.counts.iter().map(|(k, c)| (*k, *c)).collect();
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
        let count = |most| Count { most, error: 0 };
        assert_eq!(frequent.top(2), [(8, count(3)), (16, count(1))]);
    }

    proptest! {
        #[test]
        fn a_count_is_off_by_no_more_than_its_error(values in prop::collection::vec(0..40u8, 0..400), places in 1..16usize) {
            let mut frequent = Frequent::new(places);
            values.iter().for_each(|v| frequent.add(*v, 1));
            let top = frequent.top(usize::MAX);
            prop_assert!(top.len() <= places);
            for (value, count) in top {
                let exact = values.iter().filter(|v| **v == value).count() as u64;
                prop_assert!(count.error <= values.len() as u64 / places as u64);
                prop_assert!(exact <= count.most && count.most - count.error <= exact);
            }
        }
    }
}
