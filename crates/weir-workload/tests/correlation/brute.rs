//! [`Brute`]: every correlation from all values, sharing no code with the crate; and random series.

use std::collections::BTreeMap;

use weir_workload::correlation::{CorrelationOptions, Correlations, Correlator};

/// All values since the beginning.
pub struct Brute {
    options: CorrelationOptions,
    /// By series and step, missing ones repeated; and whether each is known.
    series: BTreeMap<u32, Vec<Option<(f64, bool)>>>,
    steps: usize,
}

impl Brute {
    pub fn new(options: CorrelationOptions) -> Brute {
        Brute {
            options,
            series: BTreeMap::new(),
            steps: 0,
        }
    }

    pub fn step(&mut self, values: &[(u32, f64)]) {
        for (id, _) in values {
            let steps = self.steps;
            self.series.entry(*id).or_insert_with(|| vec![None; steps]);
        }
        for (id, series) in &mut self.series {
            let value = values.iter().find(|(of, x)| of == id && x.is_finite());
            let last = series.last().copied().flatten();
            series.push(match value {
                Some((_, x)) => Some((*x, true)),
                None => last.map(|(x, _)| (x, false)),
            });
        }
        self.steps += 1;
    }

    /// The values of a window that ends `lag` steps ago, if it can be compared.
    fn window(&self, id: u32, lag: usize) -> Option<Vec<f64>> {
        let end = self.steps.checked_sub(lag)?;
        let begin = end.checked_sub(self.options.window)?;
        let window = self.series[&id].get(begin..end)?;
        let window: Option<Vec<(f64, bool)>> = window.iter().copied().collect();
        let window = window?;
        let known = window.iter().filter(|(_, is_known)| *is_known).count();
        let length = window.len() as f64;
        let mean = window.iter().map(|(x, _)| x).sum::<f64>() / length;
        let squares = window.iter().map(|(x, _)| (x - mean) * (x - mean));
        let deviation = (squares.sum::<f64>() / length).sqrt();
        let is_constant = deviation <= 1e-6 * mean.abs();
        let enough = 4 * known >= 3 * window.len() && !is_constant;
        enough.then(|| window.into_iter().map(|(x, _)| x).collect())
    }

    /// Each pair with a coefficient at the threshold or above it: the strongest, with its lag.
    pub fn pairs(&self) -> BTreeMap<(u32, u32), (f64, usize, u32)> {
        let ids: Vec<u32> = self.series.keys().copied().collect();
        let mut pairs = BTreeMap::new();
        for lag in 0..=self.options.lag {
            let earlier: Vec<_> = ids.iter().map(|id| self.window(*id, lag)).collect();
            let now: Vec<_> = ids.iter().map(|id| self.window(*id, 0)).collect();
            for (leader, x) in ids.iter().zip(&earlier) {
                for (follower, y) in ids.iter().zip(&now) {
                    let (Some(x), Some(y)) = (x, y) else { continue };
                    if leader == follower || lag == 0 && leader > follower {
                        continue;
                    }
                    let r = pearson(x, y);
                    if r.abs() < self.options.threshold {
                        continue;
                    }
                    let pair = (*leader.min(follower), *leader.max(follower));
                    let kept = pairs.entry(pair).or_insert((r, lag, *leader));
                    if r.abs() > kept.0.abs() {
                        *kept = (r, lag, *leader);
                    }
                }
            }
        }
        pairs
    }

    /// The coefficient of two windows.
    pub fn correlation(&self, leader: u32, follower: u32, lag: usize) -> Option<f64> {
        let (x, y) = (self.window(leader, lag)?, self.window(follower, 0)?);
        Some(pearson(&x, &y))
    }
}

/// Pearson's coefficient by its definition.
pub fn pearson(x: &[f64], y: &[f64]) -> f64 {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (mx, my) = (mean(x), mean(y));
    let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        x.iter().zip(y).map(|(a, b)| f(a - mx, b - my)).sum()
    };
    sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt()
}

/// A standard normal number.
pub fn normal(random: &mut fastrand::Rng) -> f64 {
    let (u, v) = (1.0 - random.f64(), random.f64());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Both, with the same values.
pub struct Both {
    pub correlator: Correlator,
    pub brute: Brute,
}

impl Both {
    pub fn new(window: usize, lag: usize, threshold: f64) -> Both {
        let options = CorrelationOptions {
            window,
            lag,
            threshold,
        };
        Both {
            correlator: Correlator::new(options),
            brute: Brute::new(options),
        }
    }

    pub fn step(&mut self, values: &[(u32, f64)]) {
        self.correlator.step(values.iter().copied());
        self.brute.step(values);
    }

    /// Asserts that both find the same pairs above the threshold, significant or not, and returns
    /// them. Coefficients within `error` of the threshold may be in one only.
    pub fn compared(&self, error: f64) -> Correlations {
        let found = self.correlator.pairs();
        let expected = self.brute.pairs();
        let threshold = self.correlator.options().threshold;
        let close = |r: &f64| (r.abs() - threshold).abs() < error;
        let sure = expected.values().filter(|(r, ..)| !close(r)).count();
        let all = found.pairs.len() + found.insignificant as usize;
        assert!(
            (sure..=expected.len()).contains(&all),
            "{all} pairs, not {sure} to {}",
            expected.len()
        );
        for pair in &found.pairs {
            let key = (
                pair.leader.min(pair.follower),
                pair.leader.max(pair.follower),
            );
            let (r, lag, leader) = expected[&key];
            assert!((pair.coefficient - r).abs() < error, "{pair:?}: {r}");
            let of_this = self.brute.correlation(pair.leader, pair.follower, pair.lag);
            let of_this = of_this.expect("it can be compared");
            assert!((pair.coefficient - of_this).abs() < error, "{pair:?}");
            // Several lags may have the strongest coefficient.
            if (r.abs() - of_this.abs()).abs() > error {
                assert_eq!((pair.lag, pair.leader), (lag, leader), "{pair:?}");
            }
        }
        assert_eq!(found.omitted, 0);
        found
    }
}
