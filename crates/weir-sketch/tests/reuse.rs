//! Reuse distances against a plain list of keys, and samples against the exact curve.

use proptest::prelude::*;
use weir_sketch::{ReuseHistogram, ReuseSampler, Touch};

/// The cache sizes whose miss ratios are compared.
fn sizes() -> impl Iterator<Item = u64> {
    (0..20).flat_map(|power| [1 << power, 3 << power])
}

fn histogram(keys: &[u64], sampler: &mut ReuseSampler, bits: u32) -> ReuseHistogram {
    let mut histogram = ReuseHistogram::new(bits);
    for &key in keys {
        histogram.add(sampler.touch(key));
    }
    histogram
}

fn exact(keys: &[u64]) -> ReuseHistogram {
    let mut sampler = ReuseSampler::new(1 << 28);
    let histogram = histogram(keys, &mut sampler, ReuseHistogram::EXACT_BITS);
    assert!(sampler.is_exact() && histogram.is_exact());
    histogram
}

/// Misses of a simulated LRU cache.
fn misses_of_a_cache(keys: &[u64], size: usize) -> usize {
    let mut cache: Vec<u64> = Vec::new();
    let mut misses = 0;
    for key in keys {
        match cache.iter().position(|known| known == key) {
            Some(at) => drop(cache.remove(at)),
            None => misses += 1,
        }
        cache.push(*key);
        if cache.len() > size {
            cache.remove(0);
        }
    }
    misses
}

/// A pseudorandom number, for reproducible workloads.
fn scatter(i: u64) -> u64 {
    let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11
}

/// A skewed workload: the k-th of `keys` is about 1/k as frequent as the first.
fn skewed(references: u64, keys: f64) -> Vec<u64> {
    let unit = |i| scatter(i) as f64 / (1u64 << 53) as f64;
    (0..references).map(|i| keys.powf(unit(i)) as u64).collect()
}

#[test]
fn a_loop_misses_until_all_of_it_fits() {
    let keys: Vec<u64> = (0..5_000).map(|i| i % 1_000).collect();
    let histogram = exact(&keys);
    assert_eq!(histogram.miss_ratio(999).ratio, 1.0);
    assert_eq!(histogram.miss_ratio(1_000).ratio, 0.2);
    assert_eq!(histogram.greatest(), Some(999));
    assert_eq!(histogram.distinct(), 1_000.0);
    let distances: Vec<_> = histogram.distances().collect();
    assert_eq!(distances, [(999, 999, 4_000.0)]);
}

#[test]
fn without_references_all_miss() {
    let histogram = ReuseHistogram::new(ReuseHistogram::SKETCH_BITS);
    assert_eq!(histogram.miss_ratio(100).ratio, 1.0);
    assert_eq!(histogram.greatest(), None);
}

#[test]
fn the_memory_limit_is_respected_and_used() {
    for bytes in [1 << 16, 1 << 20, 3 << 20] {
        let mut sampler = ReuseSampler::new(bytes);
        let (mut most, mut keys) = (0, 0);
        for key in 0..2_000_000 {
            sampler.touch(key);
            most = most.max(sampler.bytes());
            keys = keys.max(sampler.keys());
        }
        assert!(most <= bytes, "{most} bytes of {bytes}");
        assert!(most >= bytes / 6 * 5, "{most} bytes of {bytes}");
        assert!(keys >= bytes / 21, "{keys} keys in {bytes}");
        let expected = 2_000_000.0 * sampler.rate();
        let off = (sampler.keys() as f64 - expected).abs();
        assert!(
            off < 5.0 * expected.sqrt(),
            "{} keys at rate {}",
            sampler.keys(),
            sampler.rate()
        );
    }
}

/// The mean and the largest distance of the sampled curve from the exact one, over caches that hold
/// at least a hundred sampled keys; and how many of all caches exceed the reported error.
fn compare(keys: &[u64], sampler: &mut ReuseSampler) -> (f64, f64, usize) {
    let whole = exact(keys);
    let sample = histogram(keys, sampler, ReuseHistogram::SKETCH_BITS);
    assert!(!sampler.is_exact());
    let (mut total, mut most, mut beyond, mut count) = (0.0, 0.0f64, 0, 0.0);
    for size in sizes() {
        let estimate = sample.miss_ratio(size);
        let off = (estimate.ratio - whole.miss_ratio(size).ratio).abs();
        beyond += usize::from(off > estimate.error + 1e-9);
        if size as f64 * sampler.rate() >= 100.0 {
            total += off;
            most = most.max(off);
            count += 1.0;
        }
    }
    (total / count, most, beyond)
}

#[test]
fn a_sample_estimates_the_exact_curve() {
    let mixed: Vec<u64> = (0..1_200_000)
        .map(|i| match i % 3 {
            0 => i / 3 % 100_000,
            1 => 1_000_000 + scatter(i) % 300_000,
            _ => 2_000_000 + scatter(i) % 2_000,
        })
        .collect();
    for (name, keys) in [("skewed", skewed(1_200_000, 1e6)), ("mixed", mixed)] {
        let (mean, most, beyond) = compare(&keys, &mut ReuseSampler::new(1 << 17));
        assert!(
            mean < 0.01 && most < 0.03,
            "{name}: {mean} on average, {most} at most"
        );
        assert!(
            beyond <= 4,
            "{name}: {beyond} of 40 sizes are off by more than the error"
        );
        let (mean, most, beyond) = compare(&keys, &mut ReuseSampler::with_rate(1 << 22, 0.02));
        assert!(
            beyond <= 4,
            "{name}: {beyond} of 40 sizes are off by more than the error"
        );
        assert!(
            mean < 0.01 && most < 0.03,
            "{name}: {mean} on average, {most} at most"
        );
    }
}

#[test]
fn the_error_shrinks_with_memory_and_is_zero_when_exact() {
    let keys = skewed(400_000, 1e5);
    let error = |bytes| {
        let histogram = histogram(
            &keys,
            &mut ReuseSampler::new(bytes),
            ReuseHistogram::SKETCH_BITS,
        );
        histogram.miss_ratio(1 << 10).error
    };
    let (small, large) = (error(1 << 16), error(1 << 19));
    assert!(small > large && large > 0.0, "{small} then {large}");
    assert_eq!(error(1 << 24), 0.0);
}

#[test]
fn an_invalid_sampling_rate_samples_every_key() {
    let mut sampler = ReuseSampler::with_rate(0, f64::NAN);
    let touched = (0..1_000).filter(|&key| sampler.touch(key) != Touch::Unsampled);
    assert!(touched.count() == 1_000, "an invalid rate counts as 1");
    let mut sampler = ReuseSampler::with_rate(0, -1.0);
    assert!((0..1_000).all(|key| sampler.touch(key) == Touch::Unsampled));
}

proptest! {
    #[test]
    fn the_exact_curve_matches_simulated_caches(keys in prop::collection::vec(0u64..50, 1..400), size in 1usize..60) {
        let ratio = misses_of_a_cache(&keys, size) as f64 / keys.len() as f64;
        let estimate = exact(&keys).miss_ratio(size as u64);
        prop_assert!((estimate.ratio - ratio).abs() < 1e-12, "{estimate:?} for {ratio}");
        prop_assert_eq!(estimate.error, 0.0);
    }

    #[test]
    fn merged_histograms_describe_separate_caches(
        a in prop::collection::vec(0u64..50, 1..200),
        b in prop::collection::vec(0u64..50, 1..200),
        size in 1usize..60,
    ) {
        let mut both = exact(&a);
        both.merge(&exact(&b));
        let misses = misses_of_a_cache(&a, size) + misses_of_a_cache(&b, size);
        let ratio = misses as f64 / (a.len() + b.len()) as f64;
        prop_assert!((both.miss_ratio(size as u64).ratio - ratio).abs() < 1e-12);
    }
}
