//! The rank sum test of two independent samples.
//!
//! Mann and Whitney, On a test of whether one of two random variables is stochastically larger than
//! the other, Annals of Mathematical Statistics 18 (1947). Without equal values the distribution
//! of the statistic is exact; with equal values it is the normal approximation with the correction
//! for ties and for continuity (Lehmann, Nonparametrics, 1975, section 1.4).

use statrs::distribution::{ContinuousCDF, Normal};

/// The two-sided probability, if both samples have the same distribution, of a statistic that is at
/// least as extreme. 1 if a sample is empty.
pub fn p_value(first: &[f64], second: &[f64]) -> f64 {
    let (n, m) = (first.len(), second.len());
    if n == 0 || m == 0 {
        return 1.0;
    }
    let (u, ties) = statistic(first, second);
    match ties.is_empty() {
        true => exact(n, m, u),
        false => approximate(n, m, u, &ties),
    }
}

/// The number of pairs in which the value of `second` is greater, a pair of equal values counting
/// half; and the sizes of the groups of equal values.
fn statistic(first: &[f64], second: &[f64]) -> (f64, Vec<usize>) {
    let mut u = 0.0;
    for x in first {
        for y in second {
            u += match y.total_cmp(x) {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Equal => 0.5,
                std::cmp::Ordering::Less => 0.0,
            };
        }
    }
    let mut all = [first, second].concat();
    all.sort_by(f64::total_cmp);
    let groups = all.chunk_by(|a, b| a == b).map(<[f64]>::len);
    (u, groups.filter(|&size| size > 1).collect())
}

fn exact(n: usize, m: usize, u: f64) -> f64 {
    let probabilities = distribution(n, m);
    // Without ties it is a whole number.
    let u = u as usize;
    let below: f64 = probabilities[..=u].iter().sum();
    let above: f64 = probabilities[u..].iter().sum();
    (2.0 * below.min(above)).min(1.0)
}

fn approximate(n: usize, m: usize, u: f64, ties: &[usize]) -> f64 {
    let (n, m) = (n as f64, m as f64);
    let all = n + m;
    let cubes = ties.iter().map(|&t| (t as f64).powi(3) - t as f64);
    let tied: f64 = cubes.sum::<f64>() / (all * (all - 1.0));
    let variance = n * m / 12.0 * (all + 1.0 - tied);
    if variance <= 0.0 {
        return 1.0;
    }
    let distance = ((u - n * m / 2.0).abs() - 0.5).max(0.0);
    let normal = Normal::new(0.0, 1.0).expect("the standard normal distribution");
    (2.0 * normal.sf(distance / variance.sqrt())).min(1.0)
}

/// The probability of each value of the statistic, from 0 to `n * m`, if both samples have the same
/// distribution: the largest of all values is in the second sample, where it exceeds `n` values, or
/// in the first.
pub fn distribution(n: usize, m: usize) -> Vec<f64> {
    // The distributions for the present number of the first sample and each number of the second.
    let mut rows: Vec<Vec<f64>> = (0..=m).map(|_| vec![1.0]).collect();
    for i in 1..=n {
        let mut next: Vec<Vec<f64>> = vec![vec![1.0]];
        for j in 1..=m {
            let (from_first, from_second) = (&rows[j], &next[j - 1]);
            let share = i as f64 / (i + j) as f64;
            let mut values = vec![0.0; i * j + 1];
            for (u, p) in from_first.iter().enumerate() {
                values[u] += share * p;
            }
            for (u, p) in from_second.iter().enumerate() {
                values[u + i] += (1.0 - share) * p;
            }
            next.push(values);
        }
        rows = next;
    }
    rows.swap_remove(m)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way to choose the second sample from the ranks.
    fn by_enumeration(n: usize, m: usize) -> Vec<f64> {
        let (mut counts, mut all) = (vec![0.0; n * m + 1], 0.0);
        for chosen in 0u32..1 << (n + m) {
            if chosen.count_ones() as usize != m {
                continue;
            }
            let (mut u, mut firsts) = (0, 0);
            for rank in 0..n + m {
                match chosen >> rank & 1 {
                    1 => u += firsts,
                    _ => firsts += 1,
                }
            }
            counts[u] += 1.0;
            all += 1.0;
        }
        counts.iter().map(|count| count / all).collect()
    }

    #[test]
    fn the_distribution_equals_an_enumeration() {
        for (n, m) in [(1, 1), (1, 4), (3, 2), (4, 4), (5, 3), (7, 6)] {
            let (exact, all) = (distribution(n, m), by_enumeration(n, m));
            assert_eq!(exact.len(), all.len());
            for (a, b) in exact.iter().zip(&all) {
                assert!((a - b).abs() < 1e-12, "{n} {m}: {a} {b}");
            }
        }
    }

    #[test]
    fn separate_samples_have_the_smallest_probability() {
        let low: Vec<f64> = (0..4).map(f64::from).collect();
        let high: Vec<f64> = (10..18).map(f64::from).collect();
        // 2 of the 495 ways to choose 4 of 12.
        assert!((p_value(&low, &high) - 2.0 / 495.0).abs() < 1e-12);
        assert!((p_value(&low, &high) - p_value(&high, &low)).abs() < 1e-12);
        assert_eq!(p_value(&low, &[]), 1.0);
    }

    #[test]
    fn equal_values_are_no_evidence() {
        assert_eq!(p_value(&[1.0; 8], &[1.0; 8]), 1.0);
        let mixed = p_value(&[1.0, 1.0, 2.0, 3.0, 3.0], &[7.0, 7.0, 8.0, 8.0, 9.0]);
        // U = 0, variance 22.6: z = 12 / 4.75.
        assert!((0.009..0.014).contains(&mixed), "{mixed}");
    }
}
