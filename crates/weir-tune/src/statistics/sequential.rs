//! Looks at the data before all rounds are complete, and the error that each may make.
//!
//! A test after every round finds differences that do not exist. Here there are three looks, after
//! half, three quarters and all rounds. The error spending function of Lan and DeMets (Discrete
//! sequential boundaries for clinical trials, Biometrika 70, 1983) that resembles the limits of
//! O'Brien and Fleming gives the total error up to a share of the rounds; a look may make the
//! difference to the previous look. The sum of all looks is the error of the whole trial, whatever
//! the dependence of the looks (Bonferroni), so the correction is on the safe side.

use statrs::distribution::{ContinuousCDF, Normal};

/// The smallest number of rounds with a look: with fewer, no difference can be significant.
pub const ROUNDS_MIN: usize = 4;

/// A look at the data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// The number of complete rounds.
    pub rounds: usize,
    /// The error that the look may make.
    pub level: f64,
}

/// The looks of a trial of `rounds` with a total error of `alpha`; the last is after all rounds.
pub fn looks(rounds: usize, alpha: f64) -> Vec<Look> {
    let quarters = [2, 3, 4].map(|quarters| (rounds * quarters).div_ceil(4));
    let mut found: Vec<Look> = Vec::new();
    let mut spent = 0.0;
    for at in quarters {
        let is_new = found.last().is_none_or(|look| look.rounds < at);
        if is_new && (at >= ROUNDS_MIN || at == rounds) {
            let total = spending(at as f64 / rounds as f64, alpha);
            let level = total - spent;
            found.push(Look { rounds: at, level });
            spent = total;
        }
    }
    found
}

/// The error that may be made up to a share of the rounds, from 0 to 1.
fn spending(share: f64, alpha: f64) -> f64 {
    if share >= 1.0 {
        return alpha;
    }
    let normal = Normal::new(0.0, 1.0).expect("the standard normal distribution");
    let limit = normal.inverse_cdf(1.0 - alpha / 2.0);
    2.0 * normal.sf(limit / share.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_looks_together_make_the_error_of_the_trial() {
        for rounds in 1..60 {
            let looks = looks(rounds, 0.05);
            let sum: f64 = looks.iter().map(|look| look.level).sum();
            assert!((sum - 0.05).abs() < 1e-9, "{looks:?}");
            assert_eq!(looks.last().map(|look| look.rounds), Some(rounds));
            assert!(looks.is_sorted_by(|a, b| a.rounds < b.rounds), "{looks:?}");
            assert!(looks.iter().all(|look| look.level > 0.0), "{looks:?}");
        }
    }

    #[test]
    fn early_looks_spend_little() {
        let levels: Vec<f64> = looks(8, 0.05).iter().map(|look| look.level).collect();
        // 2 (1 - Phi(1.96 / sqrt(1/2))) = 0.00557, at three quarters 0.02362.
        for (level, expected) in levels.iter().zip([0.00557, 0.01805, 0.02638]) {
            assert!((level - expected).abs() < 1e-4, "{levels:?}");
        }
        assert_eq!(looks(3, 0.05).len(), 1);
    }
}
