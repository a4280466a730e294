//! [`LogBins`]: counts in bins of equal relative width, as a kernel program can maintain them.
//!
//! The bins are those of [`LogLinear`](crate::LogLinear) with 16 per power of two, but hold only a
//! count. A quantile is the midpoint of its bin.

use crate::log_linear::Bucketed;

/// Counts by bin. Values up to 31 in magnitude have a bin each; above, each power of two has
/// 2^[`LogBins::BITS`]. The bins from the lowest to the highest used one take 8 bytes each, at most
/// 16 kB.
#[derive(Clone, Debug, Default)]
pub struct LogBins {
    /// The bin of the first count.
    first: i32,
    counts: Vec<u64>,
}

impl PartialEq for LogBins {
    fn eq(&self, other: &LogBins) -> bool {
        self.bins().eq(other.bins())
    }
}

impl Eq for LogBins {}

impl LogBins {
    /// Bins per power of two, as a power of two.
    pub const BITS: u32 = 4;

    /// The largest relative error of a quantile: half a bin.
    pub const ERROR: f64 = 1.0 / 32.0;

    /// The number of the bin that holds `value`; monotonic in `value`.
    pub fn bin(value: i64) -> i32 {
        value.locate(LogBins::BITS).0
    }

    /// The least and the greatest value of a bin, by magnitude.
    pub fn span(bin: i32) -> (i64, i64) {
        let bits = LogBins::BITS;
        (i64::at(bin, 0, bits), i64::at(bin, u32::MAX, bits))
    }

    /// Adds `count` occurrences of `value`.
    pub fn add(&mut self, value: i64, count: u64) {
        self.add_to_bin(LogBins::bin(value), count);
    }

    /// Adds `count` values to a bin, or to the last bin if `bin` is beyond it.
    pub fn add_to_bin(&mut self, bin: i32, count: u64) {
        let (first, last) = i64::buckets(LogBins::BITS);
        if count > 0 {
            *self.grow_to(bin.clamp(first, last)) += count;
        }
    }

    /// The number of values in the bin of `value`.
    pub fn count(&self, value: i64) -> u64 {
        self.index_of(LogBins::bin(value))
            .map_or(0, |at| self.counts[at])
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &LogBins) {
        for (bin, count) in other.bins() {
            self.add_to_bin(bin, count);
        }
    }

    /// Subtracts the counts of `earlier`, an earlier state of these bins.
    pub fn remove(&mut self, earlier: &LogBins) {
        for (bin, count) in earlier.bins() {
            if let Some(at) = self.index_of(bin) {
                self.counts[at] = self.counts[at].saturating_sub(count);
            }
        }
    }

    /// The bins that are not empty, ascending.
    pub fn bins(&self) -> impl Iterator<Item = (i32, u64)> + '_ {
        let numbered = (self.first..).zip(self.counts.iter().copied());
        numbered.filter(|(_, count)| *count > 0)
    }

    /// The `q`-quantile by nearest rank, `q` from 0 to 1; `None` without values.
    pub fn quantile(&self, q: f64) -> Option<i64> {
        let total: u64 = self.counts.iter().sum();
        let rank = crate::log_linear::rank(q, (total > 0).then_some(total)?);
        let mut before = 0;
        for (bin, count) in self.bins() {
            before += count;
            if rank < before {
                let (low, high) = LogBins::span(bin);
                return Some(low + (high - low) / 2);
            }
        }
        None
    }

    fn index_of(&self, bin: i32) -> Option<usize> {
        let at = usize::try_from(bin.checked_sub(self.first)?).ok()?;
        (at < self.counts.len()).then_some(at)
    }

    /// The count of a bin; allocates the bin if needed.
    #[inline]
    fn grow_to(&mut self, bin: i32) -> &mut u64 {
        let at = match self.index_of(bin) {
            Some(at) => at,
            None => self.widen(bin),
        };
        &mut self.counts[at]
    }

    #[cold]
    fn widen(&mut self, bin: i32) -> usize {
        if self.counts.is_empty() {
            self.first = bin;
        }
        if bin < self.first {
            let more = (self.first - bin) as usize;
            self.counts.splice(0..0, std::iter::repeat_n(0, more));
            self.first = bin;
        }
        let at = (bin - self.first) as usize;
        self.counts.resize(self.counts.len().max(at + 1), 0);
        at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_values_have_their_own_bins() {
        for value in -31..=31 {
            assert_eq!(LogBins::span(LogBins::bin(value)), (value, value));
        }
        assert_eq!(LogBins::span(LogBins::bin(100)), (100, 103));
        assert_eq!(LogBins::span(LogBins::bin(-101)), (-100, -103));
    }

    #[test]
    fn a_bin_out_of_range_counts_in_the_last() {
        let mut bins = LogBins::default();
        bins.add_to_bin(i32::MAX, 2);
        bins.add_to_bin(i32::MIN, 1);
        let ends = [(LogBins::bin(i64::MIN), 1), (LogBins::bin(i64::MAX), 2)];
        assert_eq!(bins.bins().collect::<Vec<_>>(), ends);
    }

    proptest! {
        #[test]
        fn a_quantile_is_within_its_error(mut values in prop::collection::vec(any::<i64>(), 1..50), q in 0.0..=1.0) {
            let mut bins = LogBins::default();
            values.iter().for_each(|&value| bins.add(value, 1));
            values.sort_unstable();
            let exact = values[crate::log_linear::rank(q, values.len() as u64) as usize] as f64;
            let estimate = bins.quantile(q).unwrap() as f64;
            prop_assert!((estimate - exact).abs() <= exact.abs() * LogBins::ERROR + 1.0, "{estimate} for {exact}");
        }

        #[test]
        fn a_merged_histogram_can_be_removed(
            a in prop::collection::vec(any::<i64>(), 0..50),
            b in prop::collection::vec(any::<i64>(), 0..50),
        ) {
            let of = |values: &[i64]| {
                let mut bins = LogBins::default();
                values.iter().for_each(|&value| bins.add(value, 1));
                bins
            };
            let mut both = of(&a);
            both.merge(&of(&b));
            prop_assert_eq!(&both, &of(&[a.clone(), b.clone()].concat()));
            both.remove(&of(&a));
            prop_assert_eq!(both, of(&b));
        }
    }
}
