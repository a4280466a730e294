//! [`CoMoments`]: exact sums over pairs of numbers, and their covariance, correlation and least
//! squares line.
//!
//! As in [`crate::Moments`], n·Σxy - Σx·Σy is computed from exact sums and rounded once, so close
//! large values lose no precision and pairs can be removed without drift.

use crate::codec::{self, Bytes, SketchDecodeError};
use crate::exact::{ExactNumber, ExactSum, scale};

/// Count, sums, sums of squares and sum of products of pairs (x, y).
#[derive(Clone, Debug, Default)]
pub struct CoMoments {
    count: i64,
    x: ExactSum,
    y: ExactSum,
    xx: ExactSum,
    yy: ExactSum,
    xy: ExactSum,
}

/// n·Σab - Σa·Σb as (z, e), meaning z · 2^e.
type Scaled = (f64, i32);

impl CoMoments {
    /// Adds `weight` copies of a pair; removes them if negative.
    pub fn add(&mut self, x: ExactNumber, y: ExactNumber, weight: i64) {
        self.count = self.count.wrapping_add(weight);
        self.x.add_number(x, weight);
        self.y.add_number(y, weight);
        self.xx.add_product_of(x, x, weight);
        self.yy.add_product_of(y, y, weight);
        self.xy.add_product_of(x, y, weight);
    }

    /// The number of pairs.
    pub fn count(&self) -> i64 {
        self.count
    }

    /// The mean of x. `None` without pairs.
    pub fn mean_x(&self) -> Option<f64> {
        (self.count > 0).then(|| self.x.over(self.count))
    }

    /// The mean of y. `None` without pairs.
    pub fn mean_y(&self) -> Option<f64> {
        (self.count > 0).then(|| self.y.over(self.count))
    }

    /// The sum of squared distances of x from their mean. `None` without pairs, as all that
    /// follows; NaN with an infinity or NaN among the numbers that it is computed from.
    pub fn sum_squares_x(&self) -> Option<f64> {
        let (z, e) = self.spread_x()?;
        Some(scale(z / self.count as f64, e))
    }

    /// The sum of squared distances of y from their mean.
    pub fn sum_squares_y(&self) -> Option<f64> {
        let (z, e) = self.spread_y()?;
        Some(scale(z / self.count as f64, e))
    }

    /// The sum of products of the distances of x and y from their means.
    pub fn sum_products(&self) -> Option<f64> {
        let (z, e) = self.joint()?;
        Some(scale(z / self.count as f64, e))
    }

    /// The sum of products over `count - freedom`: the covariance of the population with freedom 0,
    /// of the sample with freedom 1. `None` where the divisor is not positive.
    pub fn covariance(&self, freedom: u8) -> Option<f64> {
        let divisor = self
            .count
            .checked_sub(i64::from(freedom))
            .filter(|&d| d > 0)?;
        let (z, e) = self.joint()?;
        Some(scale(z / self.count as f64 / divisor as f64, e))
    }

    /// Pearson's coefficient of correlation, from -1 to 1. `None` if all x or all y are equal.
    pub fn correlation(&self) -> Option<f64> {
        let (x, y, joint) = (self.spread_x()?, self.spread_y()?, self.joint()?);
        if x.0 == 0.0 || y.0 == 0.0 {
            return None;
        }
        let (x_root, x_exponent) = root(x);
        let (y_root, y_exponent) = root(y);
        let exponent = joint.1 - x_exponent - y_exponent;
        Some(scale(joint.0 / x_root / y_root, exponent).clamp(-1.0, 1.0))
    }

    /// The slope of the least squares line of y over x. `None` if all x are equal.
    pub fn slope(&self) -> Option<f64> {
        let (x, joint) = (self.spread_x()?, self.joint()?);
        (x.0 != 0.0).then(|| scale(joint.0 / x.0, joint.1 - x.1))
    }

    /// The y of that line where x is 0.
    pub fn intercept(&self) -> Option<f64> {
        Some(self.mean_y()? - self.slope()? * self.mean_x()?)
    }

    /// The share of the variance of y that the line explains: 1 if all y are equal, `None` if all x
    /// are.
    pub fn determination(&self) -> Option<f64> {
        if self.spread_x()?.0 == 0.0 {
            return None;
        }
        if self.spread_y()?.0 == 0.0 {
            return Some(1.0);
        }
        self.correlation().map(|r| r * r)
    }

    /// Adds the pairs of `other`.
    pub fn merge(&mut self, other: &CoMoments) {
        self.count = self.count.wrapping_add(other.count);
        self.x.merge(&other.x);
        self.y.merge(&other.y);
        self.xx.merge(&other.xx);
        self.yy.merge(&other.yy);
        self.xy.merge(&other.xy);
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.sums().iter().map(|sum| sum.bytes()).sum()
    }

    /// Appends the encoded sums.
    pub fn encode(&self, out: &mut Vec<u8>) {
        codec::put_i64(out, self.count);
        self.sums().iter().for_each(|sum| sum.encode(out));
    }

    /// Decodes sums written by [`CoMoments::encode`].
    ///
    /// # Errors
    /// If the bytes are invalid.
    pub fn decode(bytes: &mut Bytes<'_>) -> Result<CoMoments, SketchDecodeError> {
        Ok(CoMoments {
            count: bytes.i64()?,
            x: ExactSum::decode(bytes)?,
            y: ExactSum::decode(bytes)?,
            xx: ExactSum::decode(bytes)?,
            yy: ExactSum::decode(bytes)?,
            xy: ExactSum::decode(bytes)?,
        })
    }

    fn sums(&self) -> [&ExactSum; 5] {
        [&self.x, &self.y, &self.xx, &self.yy, &self.xy]
    }

    fn spread_x(&self) -> Option<Scaled> {
        self.centred(&self.xx, &self.x, &self.x)
    }

    fn spread_y(&self) -> Option<Scaled> {
        self.centred(&self.yy, &self.y, &self.y)
    }

    fn joint(&self) -> Option<Scaled> {
        self.centred(&self.xy, &self.x, &self.y)
    }

    /// n·Σab - Σa·Σb, rounded once.
    fn centred(&self, products: &ExactSum, a: &ExactSum, b: &ExactSum) -> Option<Scaled> {
        let count = u64::try_from(self.count).ok().filter(|&n| n > 0)?;
        if products.is_special() || a.is_special() || b.is_special() {
            return Some((f64::NAN, 0));
        }
        if let (Some(products), Some(a), Some(b)) = (products.to_i128(), a.to_i128(), b.to_i128())
            && let Some(product) = a.checked_mul(b)
            && let Some(total) = products.checked_mul(i128::from(count))
            && let Some(centred) = total.checked_sub(product)
        {
            return Some((centred as f64, 0));
        }
        let mut centred = ExactSum::default();
        centred.add_multiple(products, count);
        centred.subtract_product(a, b);
        Some(centred.to_scaled())
    }
}

/// The square root of z · 2^e, in the same form.
fn root((z, e): Scaled) -> Scaled {
    let odd = e.rem_euclid(2);
    ((z * f64::from(1 << odd)).sqrt(), (e - odd) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ExactNumber::{Float, Int};

    fn of(pairs: &[(f64, f64)]) -> CoMoments {
        let mut sums = CoMoments::default();
        for &(x, y) in pairs {
            sums.add(Float(x), Float(y), 1);
        }
        sums
    }

    /// Anscombe 1973, "Graphs in Statistical Analysis", The American Statistician 27, first set:
    /// r = 0.816, y = 3.00 + 0.500 x.
    #[test]
    fn the_first_set_of_anscombe_has_its_published_line() {
        let x = [10., 8., 13., 9., 11., 14., 6., 4., 12., 7., 5.];
        let y = [
            8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68,
        ];
        let pairs: Vec<(f64, f64)> = x.into_iter().zip(y).collect();
        let sums = of(&pairs);
        let near = |found: Option<f64>, published: f64, error: f64| {
            let found = found.expect("x and y differ");
            assert!((found - published).abs() < error, "{found} {published}");
        };
        near(sums.correlation(), 0.816, 0.0005);
        near(sums.slope(), 0.500, 0.0005);
        near(sums.intercept(), 3.00, 0.005);
        near(sums.determination(), 0.67, 0.005);
        near(sums.mean_x(), 9.0, 1e-12);
        near(sums.mean_y(), 7.50, 0.005);
        near(sums.sum_squares_x(), 110.0, 1e-9);
    }

    /// In floats the naive formula has no correct digit left here.
    #[test]
    fn close_large_values_keep_their_correlation() {
        let sums = of(&[
            (1e15 + 1.0, 1e15),
            (1e15 + 2.0, 1e15 + 1.0),
            (1e15 + 4.0, 1e15 + 3.0),
        ]);
        assert_eq!(sums.correlation(), Some(1.0));
        assert_eq!(sums.slope(), Some(1.0));
        let mut times = CoMoments::default();
        for (x, y) in [(1, 5), (2, 3), (3, 1)] {
            let epoch = 1_700_000_000_000_000_000;
            times.add(Int(epoch + x), Float(0.5 * f64::from(y)), 1);
        }
        assert_eq!(times.slope(), Some(-1.0));
        assert_eq!(times.correlation(), Some(-1.0));
    }

    /// A million pairs pass, some 24 orders of magnitude larger; what remains is exact.
    #[test]
    fn retraction_leaves_no_drift() {
        let kept = [(0.1, 0.7), (0.2, 0.1), (0.3, -0.4)];
        let mut sums = of(&kept);
        let passing = |i: u32| {
            let x = f64::from(i.wrapping_mul(2_654_435_761)) * 10f64.powi(i as i32 % 25 - 12);
            (Float(x), Float(-x * 0.3 + f64::from(i)))
        };
        for i in 0..100_000 {
            let (x, y) = passing(i);
            sums.add(x, y, 1);
            if i >= 50 {
                let (x, y) = passing(i - 50);
                sums.add(x, y, -1);
            }
        }
        for i in 99_950..100_000 {
            let (x, y) = passing(i);
            sums.add(x, y, -1);
        }
        let (mut left, mut only) = (Vec::new(), Vec::new());
        sums.encode(&mut left);
        of(&kept).encode(&mut only);
        assert_eq!(left, only);
        assert_eq!(sums.correlation(), of(&kept).correlation());
    }

    #[test]
    fn extremes_of_the_range_of_floats_neither_overflow_nor_vanish() {
        let (big, small) = (f64::MAX / 4.0, f64::MIN_POSITIVE / 4.0);
        let sums = of(&[(big, small), (-big, -small), (big / 2.0, small / 2.0)]);
        assert_eq!(sums.correlation(), Some(1.0));
        assert_eq!(sums.determination(), Some(1.0));
        assert_eq!(sums.sum_squares_x(), Some(f64::INFINITY));
    }

    #[test]
    fn without_a_spread_there_is_no_line() {
        let level = of(&[(1.0, 5.0), (2.0, 5.0)]);
        assert_eq!(level.correlation(), None);
        assert_eq!(level.slope(), Some(0.0));
        assert_eq!(level.determination(), Some(1.0));
        let upright = of(&[(1.0, 5.0), (1.0, 6.0)]);
        assert_eq!((upright.slope(), upright.determination()), (None, None));
        assert_eq!(of(&[]).covariance(0), None);
        assert_eq!(of(&[(1.0, 2.0)]).covariance(1), None);
        let special = of(&[(f64::INFINITY, 1.0), (1.0, 2.0)]);
        assert!(special.correlation().is_some_and(f64::is_nan));
    }
}
