//! Interim analyses: decisions before all rounds are complete, and the error that each may make.
//!
//! A test after every round finds differences that do not exist. Here there are three analyses:
//! after half, three quarters and all rounds. The error spending function of Lan and DeMets
//! (Discrete sequential boundaries for clinical trials, Biometrika 70, 1983) that resembles the
//! limits of O'Brien and Fleming gives the total error up to a share of the rounds; an analysis may
//! make the difference to the previous one. The sum of all is the error of the whole trial, however
//! they depend on each other (Bonferroni), so the correction is on the safe side.

use statrs::distribution::{ContinuousCDF, Normal};

/// The smallest number of rounds with an analysis: with fewer, no difference can be significant.
pub const ROUNDS_MIN: usize = 4;

/// A decision from the rounds so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InterimAnalysis {
    /// The number of complete rounds.
    pub rounds: usize,
    /// The error that the analysis may make.
    pub level: f64,
}

/// The analyses of a trial of `rounds` with a total error of `alpha`; the last is after all rounds.
pub fn analyses(rounds: usize, alpha: f64) -> Vec<InterimAnalysis> {
    let quarters = [2, 3, 4].map(|quarters| (rounds * quarters).div_ceil(4));
    let mut found: Vec<InterimAnalysis> = Vec::new();
    let mut spent = 0.0;
    for at in quarters {
        let is_new = found.last().is_none_or(|analysis| analysis.rounds < at);
        if is_new && (at >= ROUNDS_MIN || at == rounds) {
            let total = spending(at as f64 / rounds as f64, alpha);
            let level = total - spent;
            found.push(InterimAnalysis { rounds: at, level });
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
            let analyses = analyses(rounds, 0.05);
            let sum: f64 = analyses.iter().map(|analysis| analysis.level).sum();
            assert!((sum - 0.05).abs() < 1e-9, "{analyses:?}");
            assert_eq!(
                analyses.last().map(|analysis| analysis.rounds),
                Some(rounds)
            );
            assert!(
                analyses.is_sorted_by(|a, b| a.rounds < b.rounds),
                "{analyses:?}"
            );
            assert!(
                analyses.iter().all(|analysis| analysis.level > 0.0),
                "{analyses:?}"
            );
        }
    }

    #[test]
    fn early_looks_spend_little() {
        let levels: Vec<f64> = analyses(8, 0.05)
            .iter()
            .map(|analysis| analysis.level)
            .collect();
        // 2 (1 - Phi(1.96 / sqrt(1/2))) = 0.00557, at three quarters 0.02362.
        for (level, expected) in levels.iter().zip([0.00557, 0.01805, 0.02638]) {
            assert!((level - expected).abs() < 1e-4, "{levels:?}");
        }
        assert_eq!(analyses(3, 0.05).len(), 1);
    }
}
