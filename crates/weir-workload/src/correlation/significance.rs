//! Whether a correlation may be due to chance.
//!
//! Successive values of a disk depend on each other, so n values are as informative as fewer
//! independent ones: 1/n' = 1/n · (1 + 2·Σ (1 - j/n)·ρx(j)·ρy(j)), with the autocorrelations ρ of
//! both series (Bartlett 1935; Pyper and Peterman 1998, whose bound n/5 for j is used here; products
//! of two that are within the error of independent values are left out). Of uncorrelated series,
//! Fisher's z = atanh(r)·√(n' - 3) is normally distributed (Fisher 1921).
//!
//! That assumes values without bursts. The products of two series whose only burst coincides add up
//! to a correlation of 1, as it happens by chance once in n times. The number of values that
//! contribute is estimated by k = (Σc)²/Σc² of the products c, of which k' = k·n'/n are independent;
//! k' of n' positions coincide by chance with probability 1/C(n', k'). The greater probability
//! counts.

/// The least effective number of values: below, Fisher's z has no deviation.
const EFFECTIVE_MIN: f64 = 4.0;

/// A two-sided normal interval of 95 %.
const Z_95: f64 = 1.959_964;

/// The significance of one correlation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Significance {
    /// The number of independent values that are as informative.
    pub effective: f64,
    /// How many values contribute to the correlation.
    pub contributing: f64,
    /// The probability of such a correlation between unrelated series, of a single comparison.
    pub p_value: f64,
    /// The coefficient's interval of 95 % confidence.
    pub interval: [f64; 2],
}

/// The significance of the correlation `r` of two windows, of which `known` pairs of values are
/// known.
pub fn significance(r: f64, x: &[f64], y: &[f64], known: usize) -> Significance {
    let effective = effective_size(x, y, known);
    let contributing = contributing(x, y);
    let deviations = (effective - 3.0).max(0.0).sqrt();
    // A coefficient of exactly 1 would have an infinite z.
    let z = r.clamp(-1.0 + 1e-12, 1.0 - 1e-12).atanh();
    let by_size = (2.0 * normal_tail(z.abs() * deviations)).min(1.0);
    let independent = contributing * effective / (known.max(1) as f64);
    let by_position = (-log_choose(effective, independent)).exp();
    let around = |sign: f64| match deviations > 0.0 {
        true => (z + sign * Z_95 / deviations).tanh(),
        false => sign,
    };
    Significance {
        effective,
        contributing,
        p_value: by_size.max(by_position),
        interval: [around(-1.0), around(1.0)],
    }
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn effective_size(x: &[f64], y: &[f64], known: usize) -> f64 {
    let n = x.len();
    let [x, y] = [x, y].map(centred);
    let error = Z_95 / (n as f64).sqrt();
    let mut sum = 0.0;
    for lag in 1..=n / 5 {
        let share = 1.0 - lag as f64 / n as f64;
        let (of_x, of_y) = (autocorrelation(&x, lag), autocorrelation(&y, lag));
        if of_x.abs().max(of_y.abs()) > error {
            sum += share * of_x * of_y;
        }
    }
    let known = known as f64;
    let effective = known / (1.0 + 2.0 * sum).max(f64::MIN_POSITIVE);
    effective.clamp(EFFECTIVE_MIN.min(known), known)
}

/// The distances from the mean, divided by the root of their squares.
fn centred(x: &[f64]) -> Vec<f64> {
    let mean = mean(x);
    let squares: f64 = x.iter().map(|x| (x - mean) * (x - mean)).sum();
    let scale = match squares > 0.0 {
        true => 1.0 / squares.sqrt(),
        false => 0.0,
    };
    x.iter().map(|x| (x - mean) * scale).collect()
}

fn autocorrelation(centred: &[f64], lag: usize) -> f64 {
    let pairs = centred.iter().zip(&centred[lag..]);
    pairs.map(|(a, b)| a * b).sum()
}

fn contributing(x: &[f64], y: &[f64]) -> f64 {
    let [x, y] = [x, y].map(centred);
    let products = x.iter().zip(&y).map(|(a, b)| a * b);
    let (sum, squares) = products.fold((0.0, 0.0), |(sum, squares), c| (sum + c, squares + c * c));
    match squares > 0.0 {
        true => sum * sum / squares,
        false => 0.0,
    }
}

/// The natural logarithm of the number of choices of k from n, both rounded.
fn log_choose(n: f64, k: f64) -> f64 {
    let n = n.round().max(1.0);
    let k = k.round().clamp(0.0, (n / 2.0).floor());
    (0..k as u64)
        .map(|i| ((n - i as f64) / (k - i as f64)).ln())
        .sum()
}

/// The probability that a standard normal variable exceeds z ≥ 0: by its power series up to 3
/// (Marsaglia 2004, "Evaluating the normal distribution"), by Laplace's continued fraction above.
fn normal_tail(z: f64) -> f64 {
    let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
    if z < 3.0 {
        let (mut term, mut sum, mut divisor) = (z, z, 1.0);
        while term > 1e-18 * sum {
            divisor += 2.0;
            term *= z * z / divisor;
            sum += term;
        }
        return 0.5 - density * sum;
    }
    let fraction = (1..=60).rev().fold(z, |below, n| z + f64::from(n) / below);
    density / fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_tail_has_its_tabulated_values() {
        for (z, expected) in [
            (0.0, 0.5),
            (1.0, 0.158_655_253_931_457),
            (1.959_963_984_540_054, 0.025),
            (3.0, 1.349_898_031_630_09e-3),
            (5.0, 2.866_515_718_791_94e-7),
            (8.0, 6.220_960_574_271_78e-16),
            (12.0, 1.776_482_112_077_68e-33),
        ] {
            let found = normal_tail(z);
            assert!((found / expected - 1.0).abs() < 1e-9, "{z}: {found:e}");
        }
    }

    #[test]
    fn choices_are_those_of_pascals_triangle() {
        for (n, k, expected) in [(60.0, 1.0, 60.0), (60.0, 2.0, 1770.0), (10.0, 5.0, 252.0)] {
            assert!((log_choose(n, k).exp() / expected - 1.0).abs() < 1e-9);
        }
        assert_eq!(log_choose(10.0, 9.0), log_choose(10.0, 5.0));
    }

    #[test]
    fn one_common_burst_is_not_significant() {
        let mut x = vec![1.0; 60];
        x[17] = 50.0;
        let found = significance(1.0, &x, &x, 60);
        assert!((found.contributing - 1.0).abs() < 0.1, "{found:?}");
        assert!(found.p_value > 0.01, "{found:?}");
    }

    #[test]
    fn a_slow_drift_is_worth_few_values() {
        let drift: Vec<f64> = (0..60).map(f64::from).collect();
        let mut random = fastrand::Rng::with_seed(3);
        let noise: Vec<f64> = (0..60).map(|_| random.f64()).collect();
        let slow = significance(0.9, &drift, &drift, 60);
        let fast = significance(0.9, &noise, &noise, 60);
        assert!(slow.effective < 8.0, "{slow:?}");
        assert!(fast.effective > 40.0, "{fast:?}");
        assert!(slow.p_value > 1e-3 && fast.p_value < 1e-12);
        assert!(fast.interval[0] < 0.9 && 0.9 < fast.interval[1]);
        assert!(slow.interval[0] < fast.interval[0]);
    }
}
