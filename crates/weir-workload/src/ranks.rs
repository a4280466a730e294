//! Medians and the rank-sum test: distribution-free statistics.

/// The median; 0 without values.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// How many standard deviations the rank sum of `a` lies above what it would be if `a` and `b` were
/// drawn from the same distribution (Mann and Whitney 1947, normal approximation, with the
/// correction for ties; good from 5 values each on).
pub fn rank_sum_z(a: &[f64], b: &[f64]) -> f64 {
    let (excess, variance) = rank_sum(a, b);
    match variance > 0.0 {
        true => excess / variance.sqrt(),
        false => 0.0,
    }
}

/// The rank sum of `a` less what it would be, and its variance then.
pub fn rank_sum(a: &[f64], b: &[f64]) -> (f64, f64) {
    let (m, n) = (a.len() as f64, b.len() as f64);
    let all = m + n;
    let mut values: Vec<(f64, bool)> = a.iter().map(|x| (*x, true)).collect();
    values.extend(b.iter().map(|x| (*x, false)));
    values.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (mut rank_sum, mut ties, mut before) = (0.0, 0.0, 0.0);
    for equal in values.chunk_by(|x, y| x.0 == y.0) {
        let count = equal.len() as f64;
        let rank = before + (count + 1.0) / 2.0;
        rank_sum += rank * equal.iter().filter(|(_, of_a)| *of_a).count() as f64;
        ties += count * count * count - count;
        before += count;
    }
    let expected = m * (all + 1.0) / 2.0;
    let variance = m * n / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    (rank_sum - expected, variance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn the_rank_sum_test_matches_published_values() {
        // Ranks 6 to 10 of 10: U = 25, mean 12.5, deviation √(25·11/12) = 4.787.
        let z = rank_sum_z(&[6.0, 7.0, 8.0, 9.0, 10.0], &[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((z - 12.5 / 4.787).abs() < 1e-3, "{z}");
        assert_eq!(rank_sum_z(&[1.0, 1.0], &[1.0, 1.0]), 0.0, "all are tied");
        // Ranks of the tied pair are 2.5: W = 1 + 2.5 + 5 = 8.5, mean 9, ties 6 of 5·24.
        let z = rank_sum_z(&[1.0, 2.0, 4.0], &[2.0, 3.0]);
        let deviation = (0.5 * (6.0 - 6.0 / 20.0f64)).sqrt();
        assert!((z - (8.5 - 9.0) / deviation).abs() < 1e-9, "{z}");
    }
}
