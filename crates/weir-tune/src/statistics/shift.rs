//! The shift between two samples with its interval.
//!
//! The estimate is the median of all pairwise differences (Hodges and Lehmann, Estimates of
//! location based on rank tests, Annals of Mathematical Statistics 34, 1963); the interval inverts
//! the rank sum test (Lehmann, Nonparametrics, 1975, section 2.3), so its level is exact.

use super::mann_whitney::distribution;
use super::median;

/// A shift of the second sample relative to the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// The estimate.
    pub estimate: f64,
    /// The lower limit; negative infinity with too few values for the level.
    pub low: f64,
    /// The upper limit.
    pub high: f64,
}

/// The shift; each of its limits is wrong with a probability of at most `alpha / 2`.
pub fn shift(first: &[f64], second: &[f64], alpha: f64) -> Shift {
    let pairs = first.iter().flat_map(|x| second.iter().map(move |y| y - x));
    let mut differences: Vec<f64> = pairs.collect();
    differences.sort_by(f64::total_cmp);
    let estimate = median(&differences);
    let rank = match differences.is_empty() {
        true => 0,
        false => rank(first.len(), second.len(), alpha),
    };
    let limits = rank.checked_sub(1).map(|below| {
        let above = differences.len() - rank;
        (differences[below], differences[above])
    });
    let (low, high) = limits.unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
    Shift {
        estimate,
        low,
        high,
    }
}

/// The position, from 1, of the lower limit among the differences: the largest k for which fewer
/// than k differences are below the shift with a probability of at most `alpha / 2`.
fn rank(n: usize, m: usize, alpha: f64) -> usize {
    let mut sum = 0.0;
    let probabilities = distribution(n, m);
    let reached = probabilities.iter().take_while(|p| {
        sum += **p;
        sum <= alpha / 2.0
    });
    reached.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_those_of_the_tables() {
        // Hollander and Wolfe, table A.6: for 8 and 8 values the 14th and the 51st difference have
        // a level of 95 %.
        assert_eq!(rank(8, 8, 0.05), 14);
        // The smallest probability, 2 of 20, exceeds the level.
        let few = shift(&[1.0, 2.0, 3.0], &[2.0, 3.0, 4.0], 0.05);
        assert_eq!((few.estimate, few.low), (1.0, f64::NEG_INFINITY));
        assert_eq!(few.high, f64::INFINITY);
    }

    #[test]
    fn a_shift_of_the_values_is_a_shift_of_the_estimate() {
        let first: Vec<f64> = (0..10).map(|i| f64::from(i * i)).collect();
        let second: Vec<f64> = first.iter().map(|x| x + 5.0).collect();
        let found = shift(&first, &second, 0.05);
        assert_eq!(found.estimate, 5.0);
        let none = shift(&first, &first, 0.05);
        assert_eq!((none.low + 5.0, none.high + 5.0), (found.low, found.high));
    }
}
