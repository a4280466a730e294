//! [`Moments`]: exact count, sum and sum of squares, and the variance computed from them.
//!
//! n·Σx² - (Σx)² cancels almost completely when values are large and close together (times,
//! offsets), which makes it useless in floats. Here it is computed from exact sums and rounded once
//! at the end (see Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance",
//! The American Statistician 37, for the errors of the naive formula).

use crate::codec::{self, Bytes, SketchDecodeError};
use crate::exact::{ExactSum, scale};

/// Count, sum and sum of squares of numbers.
#[derive(Clone, Debug, Default)]
pub struct Moments {
    count: i64,
    sum: ExactSum,
    squares: ExactSum,
}

impl Moments {
    /// Adds `weight` copies of `x`; removes them if negative.
    pub fn add(&mut self, x: f64, weight: i64) {
        self.count = self.count.wrapping_add(weight);
        self.sum.add(x, weight);
        self.squares.add_square(x, weight);
    }

    /// Adds `weight` copies of `x`; removes them if negative.
    pub fn add_int(&mut self, x: i64, weight: i64) {
        self.count = self.count.wrapping_add(weight);
        self.sum.add_int(x, weight);
        self.squares.add_int_square(x, weight);
    }

    /// The number of values.
    pub fn count(&self) -> i64 {
        self.count
    }

    /// The sum of squared distances from the mean, over `count - freedom`: the variance of the
    /// population with freedom 0, of the sample with freedom 1. `None` where the divisor is not
    /// positive. NaN with an infinity or NaN among the values.
    pub fn variance(&self, freedom: u8) -> Option<f64> {
        let (quotient, exponent) = self.spread(freedom)?;
        Some(scale(quotient, exponent))
    }

    /// The square root of [`Moments::variance`], finite even where the variance is not.
    pub fn deviation(&self, freedom: u8) -> Option<f64> {
        let (quotient, exponent) = self.spread(freedom)?;
        let odd = exponent.rem_euclid(2);
        Some(scale(
            (quotient * f64::from(1 << odd)).sqrt(),
            (exponent - odd) / 2,
        ))
    }

    /// Adds the values of `other`.
    pub fn merge(&mut self, other: &Moments) {
        self.count = self.count.wrapping_add(other.count);
        self.sum.merge(&other.sum);
        self.squares.merge(&other.squares);
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.sum.bytes() + self.squares.bytes()
    }

    /// Appends the encoded moments.
    pub fn encode(&self, out: &mut Vec<u8>) {
        codec::put_i64(out, self.count);
        self.sum.encode(out);
        self.squares.encode(out);
    }

    /// Decodes moments written by [`Moments::encode`].
    ///
    /// # Errors
    /// If the bytes are invalid.
    pub fn decode(bytes: &mut Bytes<'_>) -> Result<Moments, SketchDecodeError> {
        Ok(Moments {
            count: bytes.i64()?,
            sum: ExactSum::decode(bytes)?,
            squares: ExactSum::decode(bytes)?,
        })
    }

    /// The variance as (x, e), meaning x · 2^e: (n·Σx² - (Σx)²) / (n · (n - freedom)).
    fn spread(&self, freedom: u8) -> Option<(f64, i32)> {
        let count = u64::try_from(self.count).ok()?;
        let divisor = count.checked_sub(u64::from(freedom)).filter(|&d| d > 0)?;
        if self.sum.is_special() || self.squares.is_special() {
            return Some((f64::NAN, 0));
        }
        let (numerator, exponent) = self.numerator(count);
        Some((numerator / count as f64 / divisor as f64, exponent))
    }

    fn numerator(&self, count: u64) -> (f64, i32) {
        if let (Some(sum), Some(squares)) = (self.sum.to_i128(), self.squares.to_i128())
            && let Some(square) = sum.checked_mul(sum)
            && let Some(product) = squares.checked_mul(i128::from(count))
            && let Some(numerator) = product.checked_sub(square)
        {
            return (numerator as f64, 0);
        }
        let mut numerator = ExactSum::default();
        numerator.add_multiple(&self.squares, count);
        numerator.subtract_product(&self.sum, &self.sum);
        numerator.to_scaled()
    }
}
