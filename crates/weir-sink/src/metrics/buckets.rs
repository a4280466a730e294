//! [`Buckets`]: the bucket limits of latencies, which make classic and native histograms exact.

use super::MetricHistogram;

/// Resolution of native histograms: 2^3 buckets per power of two, so each limit is 9 % above the
/// previous one.
pub const SCHEMA: i32 = 3;

/// The zero threshold of native histograms in seconds: 2^-20 s, just below 1 µs.
pub const ZERO_LIMIT: f64 = 1.0 / (1u64 << 20) as f64;

/// Buckets of the native histogram, by index: their upper limit is 2^(index / 8) s. The last one is
/// 2^12 s, more than an hour; one more bucket has larger values.
const INDEX_MIN: i32 = -20 << SCHEMA;
const INDEX_MAX: i32 = 12 << SCHEMA;

/// Limits of the classic histogram in microseconds.
const CLASSIC_US: [i64; 20] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000,
];

/// The limits of both, merged.
#[derive(Clone, Debug)]
pub struct Buckets {
    /// Upper limits in nanoseconds, ascending.
    limits_ns: Vec<i64>,
    /// The bucket of the native histogram for each limit, and the one above all limits.
    native: Vec<i32>,
}

impl Default for Buckets {
    fn default() -> Buckets {
        Buckets::new()
    }
}

impl Buckets {
    /// All limits. A latency in whole nanoseconds is at most 2^(i/8) s exactly if it is at most
    /// that many whole nanoseconds, rounded down.
    pub fn new() -> Buckets {
        let per_power = f64::from(1 << SCHEMA);
        let native_ns = |i: i32| (f64::from(i) / per_power).exp2() * 1e9;
        let native = (INDEX_MIN..=INDEX_MAX).map(|i| native_ns(i).floor() as i64);
        let classic = CLASSIC_US.iter().map(|us| us * 1_000);
        let mut limits_ns: Vec<i64> = native.chain(classic).collect();
        limits_ns.sort_unstable();
        limits_ns.dedup();
        let index = |limit: &i64| {
            let reaches = |i: &i32| native_ns(*i).floor() as i64 >= *limit;
            (INDEX_MIN..=INDEX_MAX)
                .find(reaches)
                .unwrap_or(INDEX_MAX + 1)
        };
        let mut native: Vec<i32> = limits_ns.iter().map(index).collect();
        native.push(INDEX_MAX + 1);
        Buckets { limits_ns, native }
    }

    /// The upper limits in nanoseconds, ascending.
    pub fn limits_ns(&self) -> &[i64] {
        &self.limits_ns
    }

    /// The histogram, in seconds, of `counts` by limit, the last count without limit.
    pub fn histogram(&self, counts: &[u64], sum_ns: i64) -> MetricHistogram {
        let mut histogram = MetricHistogram {
            sum: sum_ns as f64 / 1e9,
            ..MetricHistogram::default()
        };
        let mut classic_ns = CLASSIC_US.iter().map(|us| us * 1_000).peekable();
        let none = std::iter::repeat(&0);
        let limits = self.limits_ns.iter().map(Some).chain([None]);
        for ((limit, index), count) in limits.zip(&self.native).zip(counts.iter().chain(none)) {
            histogram.count += count;
            if let Some(limit_ns) = classic_ns.next_if(|classic| Some(classic) == limit) {
                let reached = (limit_ns as f64 / 1e9, histogram.count);
                histogram.classic.push(reached);
            }
            match (*index, histogram.native.last_mut()) {
                (INDEX_MIN, _) => histogram.zeros += count,
                (index, Some((last, sum))) if *last == index => *sum += count,
                (index, _) if *count > 0 => histogram.native.push((index, *count)),
                _ => {}
            }
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_histograms_are_exact() {
        let buckets = Buckets::new();
        let limits = buckets.limits_ns();
        assert!(limits.is_sorted() && limits.len() < 1_000);
        let latencies_ns = [
            1i64,
            953,
            954,
            10_000,
            10_001,
            100_000,
            999_999,
            1_000_000,
            250_000_000,
            64_000_000_001,
            9_000_000_000_000,
        ];
        let mut counts = vec![0; limits.len() + 1];
        for ns in latencies_ns {
            counts[limits.partition_point(|l| *l < ns)] += 1;
        }
        let histogram = buckets.histogram(&counts, latencies_ns.iter().sum());
        assert_eq!(histogram.count, 11);
        for (limit, count) in &histogram.classic {
            let expected = latencies_ns.iter().filter(|ns| **ns as f64 / 1e9 <= *limit);
            assert_eq!(expected.count() as u64, *count, "{limit}");
        }
        assert_eq!(histogram.classic.len(), CLASSIC_US.len());
        let zeros = latencies_ns
            .iter()
            .filter(|ns| **ns as f64 / 1e9 <= ZERO_LIMIT);
        assert_eq!(histogram.zeros, zeros.count() as u64);
        for (index, count) in &histogram.native {
            let limit = |i: i32| (f64::from(i) / 8.0).exp2();
            let inside = latencies_ns.iter().filter(|ns| {
                let s = **ns as f64 / 1e9;
                s > limit(index - 1) && (s <= limit(*index) || *index > INDEX_MAX)
            });
            assert_eq!(inside.count() as u64, *count, "{index}");
        }
        let native: u64 = histogram.native.iter().map(|(_, n)| n).sum();
        assert_eq!(native + histogram.zeros, 11);
    }
}
