//! [`BucketLimits`]: buckets by upper limit, for human-readable histograms.
//!
//! A bucket holds the values above the previous limit up to its own; values above the last limit
//! overflow. This is the rule of `vscsiStats` (Ahmad 2007, "Easy and efficient disk I/O workload
//! characterization in VMware ESX server"), also for negative values: a seek of -215 blocks counts
//! under the limit -128.

use std::cmp::Ordering;

/// Upper limits of buckets.
#[derive(Clone, Debug, PartialEq)]
pub enum BucketLimits<V> {
    /// 0 and ± the powers of two, as many as needed.
    PowersOfTwo,
    /// The given limits, ascending; then one bucket for everything above.
    Explicit(Vec<V>),
}

/// A number that has a least upper bound among the powers of two, their negatives, and 0.
pub trait PowerOfTwo: Copy {
    /// The number of the bucket whose limit is that bound; ascending with the limit.
    fn power_bucket(self) -> i32;

    /// The limit of a bucket; `None` if values of the bucket have no upper limit (NaN).
    fn power(bucket: i32) -> Option<Self>;

    /// The order of values, NaN last.
    fn order(&self, other: &Self) -> Ordering;
}

impl<V: PowerOfTwo> BucketLimits<V> {
    /// The number of the bucket that holds `value`; monotonic in `value`.
    pub fn bucket(&self, value: V) -> i32 {
        match self {
            BucketLimits::PowersOfTwo => value.power_bucket(),
            BucketLimits::Explicit(limits) => {
                limits.partition_point(|l| l.order(&value).is_lt()) as i32
            }
        }
    }

    /// The upper limit of a bucket; `None` for the overflow bucket.
    pub fn limit(&self, bucket: i32) -> Option<V> {
        match self {
            BucketLimits::PowersOfTwo => V::power(bucket),
            BucketLimits::Explicit(limits) => limits.get(usize::try_from(bucket).ok()?).copied(),
        }
    }
}

/// The bucket with limit 2^k has number k + 1, that with limit -2^k has number -(k + 1). Above 2^62
/// the limit is the greatest integer.
impl PowerOfTwo for i64 {
    fn power_bucket(self) -> i32 {
        match self {
            0 => 0,
            1.. => 65 - (self as u64 - 1).leading_zeros() as i32,
            _ => -1 - self.unsigned_abs().ilog2() as i32,
        }
    }

    fn power(bucket: i32) -> Option<i64> {
        match bucket {
            0 => Some(0),
            1..64 => Some(1 << (bucket - 1)),
            64 => Some(i64::MAX),
            -64..0 => Some(i64::MIN >> (64 + bucket)),
            _ => None,
        }
    }

    fn order(&self, other: &i64) -> Ordering {
        self.cmp(other)
    }
}

/// Added to an exponent (at least -1074) to make bucket numbers positive.
const EXPONENT_BIAS: i32 = 1075;

/// Above the bucket of +∞, whose exponent counts as 1024.
const NAN_BUCKET: i32 = EXPONENT_BIAS + 1025;

/// Fractions have negative powers. Above 2^1023 the limit is +∞; the limit of -∞ is itself. NaN
/// overflows.
impl PowerOfTwo for f64 {
    fn power_bucket(self) -> i32 {
        if self == 0.0 {
            return 0;
        } else if self.is_nan() {
            return NAN_BUCKET;
        }
        let bits = self.abs().to_bits();
        let fraction = bits & ((1 << 52) - 1);
        let (exponent, exact) = match (bits >> 52) as i32 {
            0 => (fraction.ilog2() as i32 - 1074, fraction.is_power_of_two()),
            exponent => (exponent - 1023, fraction == 0),
        };
        match (self > 0.0, exact) {
            (true, true) => EXPONENT_BIAS + exponent,
            (true, false) => EXPONENT_BIAS + exponent + 1,
            (false, _) => -(EXPONENT_BIAS + exponent),
        }
    }

    fn power(bucket: i32) -> Option<f64> {
        let exponent = match bucket.abs() {
            0 => return Some(0.0),
            number if number < NAN_BUCKET => number - EXPONENT_BIAS,
            _ => return None,
        };
        let limit = crate::exact::scale(1.0, exponent);
        Some(if bucket < 0 { -limit } else { limit })
    }

    fn order(&self, other: &f64) -> Ordering {
        self.partial_cmp(other)
            .unwrap_or_else(|| self.is_nan().cmp(&other.is_nan()))
    }
}
