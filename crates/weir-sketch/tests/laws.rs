//! Properties of every summary: order does not matter, added values can be removed, merging parts
//! gives the whole, encoding round-trips, and invalid bytes are an error.

use proptest::prelude::*;
use weir_sketch::{
    BucketLimits, Bucketed, Bytes, ExactSum, LogLinear, Moments, OrderedCounts, SketchDecodeError,
};

fn any_int() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => -1000i64..1000,
        2 => 0i64..5_000_000_000,
        1 => any::<i64>(),
        1 => Just(i64::MIN),
        1 => Just(i64::MAX),
    ]
}

fn any_float() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => (-8000i32..8000).prop_map(|x| f64::from(x) / 8.0),
        2 => any::<f64>().prop_filter("finite", |x| x.is_finite()),
        1 => Just(f64::MAX),
        1 => Just(-f64::MAX),
        1 => Just(f64::from_bits(1)),
        1 => Just(-0.0),
    ]
}

fn decoded<T>(bytes: &[u8], decode: impl Fn(&mut Bytes<'_>) -> Result<T, SketchDecodeError>) -> T {
    let mut rest = Bytes::new(bytes);
    let value = decode(&mut rest).expect("what was encoded decodes");
    rest.end().expect("all of it");
    value
}

/// The sum of floats computed independently: as integers in units of 2^-1074, in a plain big
/// number of bits.
fn sum_by_bits(values: &[(f64, i64)]) -> f64 {
    // Signed digits of 32 bits, least significant first, so that nothing carries until the end.
    let mut digits = vec![0i128; 80];
    for &(x, weight) in values {
        let bits = x.abs().to_bits();
        let exponent = (bits >> 52).max(1) as usize - 1;
        let implicit = u64::from(bits >> 52 > 0) << 52;
        let mantissa = bits & ((1 << 52) - 1) | implicit;
        let sign = if x < 0.0 { -1 } else { 1 };
        let shifted = u128::from(mantissa) << (exponent % 32);
        for i in 0..3 {
            let digit = (shifted >> (32 * i) & 0xffff_ffff) as i128;
            digits[exponent / 32 + i] += sign * digit * i128::from(weight);
        }
    }
    let negate = |digits: &mut Vec<i128>| digits.iter_mut().for_each(|d| *d = -*d);
    let carry = |digits: &mut Vec<i128>| {
        for i in 0..digits.len() - 1 {
            digits[i + 1] += digits[i] >> 32;
            digits[i] &= 0xffff_ffff;
        }
    };
    carry(&mut digits);
    let negative = digits[79] < 0;
    if negative {
        negate(&mut digits);
        carry(&mut digits);
    }
    // The standard library does not parse hexadecimal fractions: round by hand, half to even.
    let bit = |i: usize| digits[i / 32] >> (i % 32) & 1 == 1;
    let Some(top) = (0..80 * 32).rev().find(|&i| bit(i)) else {
        return 0.0;
    };
    let low = top.saturating_sub(52);
    let mut mantissa = (low..=top)
        .rev()
        .fold(0u64, |m, i| m << 1 | u64::from(bit(i)));
    if low > 0 && bit(low - 1) && (mantissa & 1 == 1 || (0..low - 1).any(bit)) {
        mantissa += 1;
    }
    // Below 2^53 units the number is subnormal or the smallest normal; its bits are the units.
    let magnitude = if low == 0 {
        f64::from_bits(mantissa)
    } else {
        (0..low).fold(
            mantissa as f64 * f64::from_bits(1 << 52) * 2f64.powi(-52),
            |x, _| x * 2.0,
        )
    };
    if negative { -magnitude } else { magnitude }
}

proptest! {
    #[test]
    fn an_exact_sum_is_the_sum_rounded_once(
        values in prop::collection::vec((any_float(), -5i64..=5), 0..40)
    ) {
        let mut sum = ExactSum::default();
        values.iter().for_each(|&(x, w)| sum.add(x, w));
        prop_assert_eq!(sum.to_f64(), sum_by_bits(&values));
    }

    #[test]
    fn removed_values_leave_no_trace_in_an_exact_sum(
        stays in prop::collection::vec(any_float(), 0..10),
        goes in prop::collection::vec((any::<f64>(), 1i64..i64::MAX), 0..20),
    ) {
        let mut sum = ExactSum::default();
        stays.iter().for_each(|&x| sum.add(x, 1));
        let before = sum.to_f64();
        goes.iter().for_each(|&(x, w)| sum.add(x, w));
        goes.iter().rev().for_each(|&(x, w)| sum.add(x, -w));
        prop_assert_eq!(sum.to_f64(), before);
    }

    #[test]
    fn exact_sums_merge_and_round_trip(
        left in prop::collection::vec((any_float(), -9i64..9), 0..20),
        right in prop::collection::vec((any::<f64>(), -9i64..9), 0..20),
    ) {
        let fold = |values: &[(f64, i64)]| {
            let mut sum = ExactSum::default();
            values.iter().for_each(|&(x, w)| sum.add(x, w));
            sum
        };
        let whole = fold(&[&left[..], &right[..]].concat()).to_f64();
        let mut bytes = Vec::new();
        fold(&right).encode(&mut bytes);
        let mut merged = fold(&left);
        merged.merge(&decoded(&bytes, ExactSum::decode));
        prop_assert_eq!(merged.to_f64().to_bits(), whole.to_bits());
        let mut other_way = fold(&right);
        other_way.merge(&fold(&left));
        prop_assert_eq!(other_way.to_f64().to_bits(), whole.to_bits());
    }

    #[test]
    fn an_exact_sum_of_integers_is_their_sum(values in prop::collection::vec((any_int(), any::<i64>()), 0..8)) {
        let mut sum = ExactSum::default();
        let mut expected = 0i128;
        for &(x, w) in &values {
            sum.add_int(x, w);
            match expected.checked_add(i128::from(x) * i128::from(w)) {
                Some(next) => expected = next,
                None => return Ok(()),
            }
        }
        prop_assert!(sum.to_i128().is_none_or(|x| x == expected));
        prop_assert_eq!(sum.to_f64(), expected as f64);
    }

    /// Against the definition, on integers that fit it in 128 bits but are far from zero, where
    /// floats would cancel.
    #[test]
    fn the_variance_matches_its_definition(
        offset in prop_oneof![Just(0i64), Just(1_700_000_000_000_000_000), any::<i32>().prop_map(i64::from)],
        values in prop::collection::vec(0i64..1_000_000, 1..50),
        goes in prop::collection::vec(any_int(), 0..10),
    ) {
        let mut ints = Moments::default();
        goes.iter().for_each(|&x| ints.add_int(x, 3));
        values.iter().for_each(|&x| ints.add_int(x + offset, 1));
        goes.iter().for_each(|&x| ints.add_int(x, -3));
        let n = values.len() as i128;
        let sum: i128 = values.iter().map(|&x| i128::from(x)).sum();
        let squares: i128 = values.iter().map(|&x| i128::from(x) * i128::from(x)).sum();
        let spread = (n * squares - sum * sum) as f64;
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-15 * b.abs();
        prop_assert!(close(ints.variance(0).unwrap(), spread / n as f64 / n as f64));
        match ints.variance(1) {
            None => prop_assert_eq!(n, 1),
            Some(v) => {
                prop_assert!(close(v, spread / n as f64 / (n - 1) as f64));
                prop_assert!(close(ints.deviation(1).unwrap(), v.sqrt()));
            }
        }
        let mut floats = Moments::default();
        values.iter().for_each(|&x| floats.add(x as f64 / 1024.0, 1));
        let scaled = spread / n as f64 / n as f64 / 1024.0 / 1024.0;
        prop_assert!(close(floats.variance(0).unwrap(), scaled));
    }

    #[test]
    fn ordered_counts_match_a_sorted_list(
        steps in prop::collection::vec((0i64..400, 1i64..3, any::<bool>()), 0..3000)
    ) {
        let mut counts = OrderedCounts::default();
        let mut list: Vec<i64> = Vec::new();
        for &(x, n, comes) in &steps {
            if comes {
                counts.add(x, n);
                list.extend(std::iter::repeat_n(x, n as usize));
            } else if let Some(i) = list.iter().position(|&y| y == x) {
                counts.add(x, -1);
                list.swap_remove(i);
            }
        }
        list.sort_unstable();
        prop_assert_eq!(counts.first(), list.first().copied());
        prop_assert_eq!(counts.last(), list.last().copied());
        prop_assert_eq!(counts.total(), list.len() as i64);
        prop_assert_eq!(counts.is_empty(), list.is_empty());
        for rank in [0, list.len() / 2, list.len().saturating_sub(1), list.len()] {
            prop_assert_eq!(counts.nth(rank as u64), list.get(rank).copied());
        }
        for from in [-1, 0, 57, 200, 399, 400] {
            prop_assert_eq!(counts.first_from(from), list.iter().copied().find(|&x| x >= from));
            prop_assert_eq!(counts.count(from), list.iter().filter(|&&x| x == from).count() as i64);
        }
        let expanded = counts.iter().flat_map(|(x, n)| std::iter::repeat_n(x, n as usize));
        prop_assert_eq!(expanded.collect::<Vec<_>>(), list);
    }

    #[test]
    fn ordered_counts_accept_a_retraction_before_its_insertion(
        rows in prop::collection::vec((-50i64..50, -4i64..5), 0..600)
    ) {
        let mut counts = OrderedCounts::default();
        rows.iter().for_each(|&(x, w)| { counts.add(x, w); });
        rows.iter().rev().for_each(|&(x, w)| { counts.add(x, -w); });
        prop_assert!(counts.is_empty());
        prop_assert_eq!((counts.total(), counts.bytes(), counts.first()), (0, 0, None));
    }

    #[test]
    fn a_quantile_is_within_its_error(
        mut values in prop::collection::vec(any_int(), 1..300),
        permille in 0u64..=1000,
    ) {
        let mut histogram = LogLinear::<i64>::default();
        values.iter().for_each(|&x| histogram.add(x, 1));
        values.sort_unstable();
        let rank = (permille * values.len() as u64).div_ceil(1000).max(1) as usize - 1;
        let found = histogram.quantile(permille as f64 / 1000.0).unwrap();
        let off = (i128::from(found) - i128::from(values[rank])).abs();
        prop_assert!(off * 128 <= i128::from(values[rank]).abs(), "{found} for {}", values[rank]);
    }

    #[test]
    fn a_quantile_of_floats_is_within_its_error(
        mut values in prop::collection::vec(any::<f64>(), 1..300),
        permille in 0u64..=1000,
    ) {
        let mut histogram = LogLinear::<f64>::default();
        values.iter().for_each(|&x| histogram.add(x, 1));
        values.sort_by(|a, b| a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())));
        let rank = (permille * values.len() as u64).div_ceil(1000).max(1) as usize - 1;
        let (found, exact) = (histogram.quantile(permille as f64 / 1000.0).unwrap(), values[rank]);
        let tiny = |x: f64| x == 0.0 || x.is_subnormal();
        let near = (found - exact).abs() <= exact.abs() / 128.0 || tiny(exact) && tiny(found);
        let alike = found == exact || (found.is_nan() && exact.is_nan());
        prop_assert!(near || alike, "{found} for {exact}");
    }

    #[test]
    fn histograms_remove_merge_and_round_trip(
        left in prop::collection::vec((any_int(), 1i64..9), 0..60),
        right in prop::collection::vec((any_int(), 1i64..9), 0..60),
    ) {
        let fold = |values: &[(i64, i64)]| {
            let mut histogram = LogLinear::<i64>::default();
            values.iter().for_each(|&(x, w)| histogram.add(x, w));
            histogram
        };
        let whole = fold(&[&left[..], &right[..]].concat());
        let mut bytes = Vec::new();
        fold(&right).encode(&mut bytes);
        let mut merged = fold(&left);
        merged.merge(&decoded(&bytes, LogLinear::decode));
        let list = |h: &LogLinear<i64>| h.buckets().collect::<Vec<_>>();
        prop_assert_eq!(list(&merged), list(&whole));
        prop_assert_eq!(merged.total(), whole.total());
        left.iter().for_each(|&(x, w)| merged.add(x, -w));
        prop_assert_eq!(list(&merged), list(&fold(&right)));
        right.iter().for_each(|&(x, w)| merged.add(x, -w));
        prop_assert_eq!((merged.bytes(), merged.quantile(0.5)), (0, None));
    }

    #[test]
    fn buckets_ascend_with_their_values(mut ints in prop::collection::vec(any_int(), 2..50)) {
        ints.sort_unstable();
        let buckets: Vec<i32> = ints.iter().map(|x| x.locate(7).0).collect();
        prop_assert!(buckets.is_sorted());
        for x in ints {
            let (bucket, offset) = x.locate(7);
            let back = i64::at(bucket, offset, 7);
            prop_assert!(back == x || x.unsigned_abs() >= 1 << 40, "{x} comes back as {back}");
            prop_assert_eq!(back.locate(7), (bucket, offset));
        }
    }

    #[test]
    fn a_quantile_lies_between_the_least_and_the_greatest(
        values in prop::collection::vec((0i64..1 << 40, 1i64..1 << 20), 1..30),
        goes in prop::collection::vec((any_int(), 1i64..9), 0..30),
        permille in 0u64..=1000,
    ) {
        let mut histogram = LogLinear::<i64>::default();
        goes.iter().for_each(|&(x, w)| histogram.add(x, w));
        values.iter().for_each(|&(x, w)| histogram.add(x, w));
        goes.iter().for_each(|&(x, w)| histogram.add(x, -w));
        let found = histogram.quantile(permille as f64 / 1000.0).unwrap();
        prop_assert!(found >= values.iter().min().unwrap().0);
        prop_assert!(found <= values.iter().max().unwrap().0);
    }

    #[test]
    fn a_repeated_value_is_exact(x in 0i64..1 << 40, others in prop::collection::vec(0i64..1 << 20, 0..9)) {
        let mut histogram = LogLinear::<i64>::default();
        histogram.add(x, 1000);
        others.iter().for_each(|&y| histogram.add((y + 1) << 41, 1));
        prop_assert_eq!(histogram.quantile(0.5), Some(x));
    }

    #[test]
    fn a_value_falls_under_the_least_limit_it_does_not_exceed(
        values in prop::collection::vec(any_int(), 1..50),
        mut limits in prop::collection::vec(-500i64..500, 0..20),
    ) {
        limits.sort_unstable();
        limits.dedup();
        let explicit = BucketLimits::Explicit(limits.clone());
        let power = |k: u32| 1i128 << k;
        let powers: Vec<i128> = (0..64).map(power).flat_map(|p| [p, -p]).chain([0]).collect();
        for x in values {
            let expected = limits.iter().copied().find(|&limit| x <= limit);
            prop_assert_eq!(explicit.limit(explicit.bucket(x)), expected);
            let powers_of_two = BucketLimits::<i64>::PowersOfTwo;
            let limit = powers_of_two.limit(powers_of_two.bucket(x)).unwrap();
            let expected = powers.iter().copied().filter(|&p| p >= i128::from(x)).min().unwrap();
            prop_assert_eq!(i128::from(limit), expected.min(i128::from(i64::MAX)));
        }
    }

    #[test]
    fn a_float_falls_under_the_least_power_of_two_it_does_not_exceed(x in any::<f64>()) {
        let powers = BucketLimits::<f64>::PowersOfTwo;
        match powers.limit(powers.bucket(x)) {
            None => prop_assert!(x.is_nan()),
            Some(limit) => {
                prop_assert!(x <= limit);
                let tighter = if x > 0.0 { limit / 2.0 } else { limit * 2.0 };
                prop_assert!(x > tighter || x == limit || limit.is_infinite(), "{x} {limit}");
            }
        }
    }

    #[test]
    fn any_bytes_are_a_summary_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), head in 0u8..3) {
        let framed = [&[1, 7, head][..], &bytes].concat();
        for input in [&bytes, &framed] {
            let _ = ExactSum::decode(&mut Bytes::new(input)).map(|s| s.to_f64());
            let _ = Moments::decode(&mut Bytes::new(input)).map(|m| m.variance(1));
            let _ = LogLinear::<i64>::decode(&mut Bytes::new(input)).map(|h| h.quantile(0.5));
            let _ = LogLinear::<f64>::decode(&mut Bytes::new(input)).map(|h| h.quantile(0.5));
        }
    }

    #[test]
    fn cut_off_bytes_are_an_error(values in prop::collection::vec(any_int(), 1..20), cut in any::<prop::sample::Index>()) {
        let (mut histogram, mut moments) = (LogLinear::<i64>::default(), Moments::default());
        values.iter().for_each(|&x| {
            histogram.add(x, 1);
            moments.add_int(x, 1);
        });
        let (mut a, mut b) = (Vec::new(), Vec::new());
        histogram.encode(&mut a);
        moments.encode(&mut b);
        prop_assert!(LogLinear::<i64>::decode(&mut Bytes::new(&a[..cut.index(a.len())])).is_err());
        prop_assert!(Moments::decode(&mut Bytes::new(&b[..cut.index(b.len())])).is_err());
    }
}

#[test]
fn vscsistats_counts_a_seek_of_minus_215_under_minus_128() {
    let limits = BucketLimits::Explicit(vec![-500i64, -128, -64, 0]);
    assert_eq!(limits.limit(limits.bucket(-215)), Some(-128));
    assert_eq!(limits.limit(limits.bucket(-128)), Some(-128));
    assert_eq!(limits.limit(limits.bucket(1)), None);
}

#[test]
fn a_quantile_rank_ignores_rounding_error() {
    let mut histogram = LogLinear::<i64>::default();
    (1..=100).for_each(|x| histogram.add(x, 1));
    // 0.07 · 100 is 7.000000000000001 in floats.
    assert_eq!(histogram.quantile(0.07), Some(7));
    assert_eq!(histogram.quantile(0.0), Some(1));
    assert_eq!(histogram.quantile(1.0), Some(100));
}

#[test]
fn infinities_and_nan_can_be_removed_from_a_sum() {
    let mut sum = ExactSum::default();
    sum.add(1.5, 1);
    sum.add(f64::INFINITY, 2);
    assert_eq!(sum.to_f64(), f64::INFINITY);
    sum.add(f64::NEG_INFINITY, 1);
    assert!(sum.to_f64().is_nan());
    sum.add(f64::NEG_INFINITY, -1);
    sum.add(f64::INFINITY, -2);
    assert_eq!(sum.to_f64(), 1.5);
}

#[test]
fn a_mean_is_finite_when_the_sum_overflows() {
    let mut sum = ExactSum::default();
    sum.add(f64::MAX, 2);
    assert_eq!(sum.to_f64(), f64::INFINITY);
    assert_eq!(sum.over(2), f64::MAX);
}

/// `cargo test --release --workspace --test laws measure_additions -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn measure_additions() {
    const COUNT: usize = 4096;
    const ROUNDS: usize = 200;
    let values: Vec<i64> = (0..COUNT as i64)
        .map(|i| 50_000 + i * 7919 % 6_000_000)
        .collect();
    let measured = |run: &dyn Fn()| {
        let round = |_| {
            let begin = std::time::Instant::now();
            (0..ROUNDS).for_each(|_| run());
            begin.elapsed().as_nanos() as f64 / (ROUNDS * COUNT) as f64
        };
        (0..12).map(round).fold(f64::INFINITY, f64::min)
    };
    let add = |floats: bool| {
        let mut sum = ExactSum::default();
        for value in &values {
            match floats {
                true => sum.add(*value as f64 * 1.1, 1),
                false => sum.add_int(*value, 1),
            }
        }
        std::hint::black_box(sum.to_f64());
    };
    let running = || {
        let sum = values
            .iter()
            .fold(0.0, |sum, value| sum + *value as f64 * 1.1);
        std::hint::black_box(sum);
    };
    let (float, int) = (measured(&|| add(true)), measured(&|| add(false)));
    println!(
        "float {float:.1} ns, integer {int:.1} ns, running sum of floats {:.1} ns",
        measured(&running)
    );
}
