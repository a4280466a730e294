//! Division of many integers by one: a multiplication and a shift each, 1.6 ns instead of 2.8 ns
//! for the division of the processor (AMD EPYC, `measure_division` below).

/// A constant to divide by, not 0.
///
/// Granlund and Montgomery, Division by Invariant Integers using Multiplication (PLDI 1994), figure
/// 5.2: with l = max(ceil(log2 |d|), 1), the quotient's magnitude is the high half of n times 1 +
/// 2^(63 + l) / |d|, shifted by l - 1, plus 1 where n is negative.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divisor {
    factor: i64,
    shift: u32,
    negative: bool,
}

impl Divisor {
    /// To divide by `divisor`.
    pub(super) fn new(divisor: i64) -> Divisor {
        assert!(divisor != 0, "division by zero is NULL");
        let size = u128::from(divisor.unsigned_abs());
        let bits = size.next_power_of_two().trailing_zeros().max(1);
        // The factor has 65 bits; without the top one it is the multiplier minus 2^64.
        let factor = 1 + (1u128 << (63 + bits)) / size;
        Divisor {
            factor: factor as u64 as i64,
            shift: bits - 1,
            negative: divisor < 0,
        }
    }

    /// `n` divided, towards zero. `i64::MIN / -1` wraps.
    #[inline]
    pub(super) fn divide(self, n: i64) -> i64 {
        let high = ((i128::from(self.factor) * i128::from(n)) >> 64) as i64;
        let quotient = (n.wrapping_add(high) >> self.shift).wrapping_sub(n >> 63);
        if self.negative {
            quotient.wrapping_neg()
        } else {
            quotient
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::Divisor;

    /// `cargo test --release --workspace --lib measure_division -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn measure_division() {
        let values: Vec<i64> = (0..4096).map(|i| (i * 7919 + 13) * 1_000_003).collect();
        let measured = |divide: &dyn Fn() -> Vec<i64>| {
            let round = |_| {
                let begin = Instant::now();
                for _ in 0..1000 {
                    black_box(divide());
                }
                begin.elapsed().as_nanos() as f64 / (1000 * values.len()) as f64
            };
            (0..12).map(round).fold(f64::INFINITY, f64::min)
        };
        let by = || black_box(1000_i64);
        let operator = measured(&|| {
            let by = by();
            values.iter().map(|n| n.wrapping_div(by)).collect()
        });
        let divisor = measured(&|| {
            let divisor = Divisor::new(by());
            values.iter().map(|n| divisor.divide(*n)).collect()
        });
        println!("operator {operator:.2} ns, Divisor {divisor:.2} ns");
    }

    #[test]
    fn a_quotient_equals_that_of_the_division_operator() {
        let mut values = vec![
            0,
            1,
            -1,
            2,
            -2,
            999,
            1000,
            -1000,
            1001,
            i64::MAX,
            i64::MIN,
            i64::MIN + 1,
        ];
        let mut seed = 1u64;
        for shift in 0..63 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            values.extend([
                (seed as i64) >> shift,
                1 << shift,
                -(1 << shift),
                (1 << shift) - 1,
            ]);
        }
        for &d in values.iter().filter(|&&d| d != 0) {
            let divisor = Divisor::new(d);
            for &n in &values {
                assert_eq!(divisor.divide(n), n.wrapping_div(d), "{n} / {d}");
            }
        }
    }
}
