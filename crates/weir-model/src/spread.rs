//! A number of 32 bits for each value, uniformly distributed: it determines which values are
//! sampled, the same ones in the kernel, on every agent and at the monitor.

/// The number of such numbers.
pub const SPREADS: i64 = 1 << 32;

/// The number of a value: the upper half of MurmurHash3's 64-bit finalizer (Appleby, fmix64), which
/// is also computed by the programs in `request.bpf.h`.
pub fn spread(value: i64) -> i64 {
    let mut x = value as u64;
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^= x >> 33;
    (x >> 32) as i64
}

/// The number of numbers, from 0 on, for this share of all; none if the share is NaN.
pub fn spreads_of(share: f64) -> i64 {
    (share.clamp(0.0, 1.0) * SPREADS as f64).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_of_successive_values_is_about_as_large() {
        for share in [0.001, 0.01, 0.25, 0.5] {
            for step in [1, 8, 4096] {
                let kept = (0..100_000_i64).filter(|n| spread(n * step) < spreads_of(share));
                let (kept, wanted) = (kept.count() as f64, share * 1e5);
                // Five standard deviations of a binomial distribution.
                assert!(
                    (kept - wanted).abs() < 5.0 * wanted.sqrt(),
                    "{share} {step}: {kept}"
                );
            }
        }
    }

    #[test]
    fn a_share_is_part_of_each_larger_one() {
        assert_eq!(
            [0.0, 0.5, 1.0, 7.0, -1.0].map(spreads_of),
            [0, SPREADS / 2, SPREADS, SPREADS, 0]
        );
        assert_eq!(spreads_of(f64::NAN), 0);
        assert!((-1000..1000).map(spread).all(|n| (0..SPREADS).contains(&n)));
    }
}
