//! [`LogLinear`]: counts in buckets of equal relative width, for quantiles of a known relative error.
//!
//! Each power of two is cut into 2^`BITS` buckets of equal width, as in HdrHistogram (Gil Tene) and fio's completion latencies
//! (`stat.h`, `FIO_IO_U_PLAT_BITS`, 6 there as here by default). A bucket is at most 2^-`BITS` of its values wide and is read at its middle, so
//! what comes out is within 2^-(`BITS` + 1) of a value that went in: 1/128.

use std::marker::PhantomData;

use crate::codec::{self, Bytes, Malformed};

/// Buckets per power of two, as a power of two: the default.
pub const SUB_BUCKET_BITS: u32 = 6;

/// Buckets lie in blocks of so many; a block is there once one of its buckets is.
const BLOCK_BITS: u32 = 4;
const BLOCK: usize = 1 << BLOCK_BITS;

/// What begins the bytes.
const VERSION: u8 = 1;

/// A number that has a bucket.
pub trait Bucketed: Copy {
    /// Its bucket among those with 2^`bits` to a power of two; greater numbers have greater buckets.
    fn bucket(self, bits: u32) -> i32;

    /// The middle of a bucket.
    fn middle(bucket: i32, bits: u32) -> Self;

    /// The buckets there are, first and last.
    fn buckets(bits: u32) -> (i32, i32);
}

/// Counts by bucket. Integers take up to 60 kB, floats that span their whole range 2.4 MB; values of like size some hundred bytes.
#[derive(Clone, Debug)]
pub struct LogLinear<V, const BITS: u32 = SUB_BUCKET_BITS> {
    total: i64,
    /// By place, which is the bucket number over [`BLOCK`].
    index: Vec<Place>,
    blocks: Vec<[i64; BLOCK]>,
    values: PhantomData<V>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    place: i32,
    /// Which of `blocks`.
    slot: u32,
    /// The block's counts together.
    total: i64,
}

impl<V, const BITS: u32> Default for LogLinear<V, BITS> {
    fn default() -> LogLinear<V, BITS> {
        LogLinear {
            total: 0,
            index: Vec::new(),
            blocks: Vec::new(),
            values: PhantomData,
        }
    }
}

impl<V: Bucketed, const BITS: u32> LogLinear<V, BITS> {
    /// Takes `weight` copies of `value` in, or out when negative.
    pub fn add(&mut self, value: V, weight: i64) {
        self.add_to_bucket(value.bucket(BITS), weight);
    }

    /// How many values.
    pub fn total(&self) -> i64 {
        self.total
    }

    /// The `q`-quantile by nearest rank: the least value that at least a share `q` of all values does not exceed, within
    /// 2^-(`BITS` + 1) of it. `None` without values. `q` is from 0 to 1.
    pub fn quantile(&self, q: f64) -> Option<V> {
        let total = u64::try_from(self.total).ok().filter(|&n| n > 0)?;
        let mut left = rank(q, total);
        for place in &self.index {
            let here = place.total.max(0) as u64;
            if left >= here {
                left -= here;
                continue;
            }
            for (i, &count) in self.blocks[place.slot as usize].iter().enumerate() {
                let here = count.max(0) as u64;
                if left < here {
                    return Some(V::middle((place.place << BLOCK_BITS) + i as i32, BITS));
                }
                left -= here;
            }
        }
        None
    }

    /// The buckets with a count, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (i32, i64)> + '_ {
        self.index.iter().flat_map(|place| {
            let counts = self.blocks[place.slot as usize].iter().enumerate();
            let numbered =
                counts.map(|(i, &count)| ((place.place << BLOCK_BITS) + i as i32, count));
            numbered.filter(|&(_, count)| count != 0)
        })
    }

    /// Takes everything of `other` in.
    pub fn merge(&mut self, other: &LogLinear<V, BITS>) {
        for (bucket, count) in other.buckets() {
            self.add_to_bucket(bucket, count);
        }
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.index.capacity() * size_of::<Place>()
            + self.blocks.capacity() * size_of::<[i64; BLOCK]>()
    }

    /// Appends its bytes: version, `BITS`, how many buckets, and of each the distance from the one before and the count.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend([VERSION, BITS as u8]);
        codec::put_u64(out, self.buckets().count() as u64);
        let mut before = 0;
        for (bucket, count) in self.buckets() {
            codec::put_i64(out, i64::from(bucket) - before);
            codec::put_i64(out, count);
            before = i64::from(bucket);
        }
    }

    /// Reads what [`LogLinear::encode`] wrote.
    ///
    /// # Errors
    /// When it did not, or another version or width did.
    pub fn decode(bytes: &mut Bytes<'_>) -> Result<LogLinear<V, BITS>, Malformed> {
        if bytes.array()? != [VERSION, BITS as u8] {
            return Err(Malformed("a histogram of another version or bucket width"));
        }
        let (first, last) = V::buckets(BITS);
        let mut histogram = LogLinear::default();
        let mut bucket = 0i64;
        for _ in 0..bytes.length(2)? {
            bucket = bucket.wrapping_add(bytes.i64()?);
            if !(i64::from(first)..=i64::from(last)).contains(&bucket) {
                return Err(Malformed("there is no such bucket"));
            }
            histogram.add_to_bucket(bucket as i32, bytes.i64()?);
        }
        Ok(histogram)
    }

    fn add_to_bucket(&mut self, bucket: i32, weight: i64) {
        if weight == 0 {
            return;
        }
        let (place, i) = (bucket >> BLOCK_BITS, bucket as usize % BLOCK);
        let at = match self.index.binary_search_by_key(&place, |p| p.place) {
            Ok(at) => at,
            Err(at) => {
                let slot = self.blocks.len() as u32;
                self.blocks.push([0; BLOCK]);
                self.index.insert(
                    at,
                    Place {
                        place,
                        slot,
                        total: 0,
                    },
                );
                at
            }
        };
        let place = &mut self.index[at];
        place.total = place.total.wrapping_add(weight);
        let count = &mut self.blocks[place.slot as usize][i];
        *count = count.wrapping_add(weight);
        self.total = self.total.wrapping_add(weight);
        if self.total == 0
            && self.index.iter().all(|p| p.total == 0)
            && self.buckets().next().is_none()
        {
            *self = LogLinear::default();
        }
    }
}

/// The nearest rank of `q` among `total` values, counted from 0: ⌈q · total⌉ - 1. A product within rounding of a whole number is taken
/// for that number, so that 0.07 of 100 is 7 and not 8.
fn rank(q: f64, total: u64) -> u64 {
    let product = q * total as f64;
    let whole = product.round();
    let near = (product - whole).abs() <= whole * 4.0 * f64::EPSILON;
    let rank = if near { whole } else { product.ceil() };
    (rank as u64).clamp(1, total) - 1
}

/// Buckets of |x| are 0, 1, .. one value wide up to 2^(bits + 1), then twice as wide with each power of two; those of negative
/// numbers mirror them.
impl Bucketed for i64 {
    fn bucket(self, bits: u32) -> i32 {
        let magnitude = self.unsigned_abs();
        let exponent = (magnitude | 1).ilog2();
        let shift = exponent.saturating_sub(bits);
        let bucket = (shift << bits) as i32 + (magnitude >> shift) as i32;
        if self < 0 { -bucket } else { bucket }
    }

    fn middle(bucket: i32, bits: u32) -> i64 {
        let magnitude = bucket.unsigned_abs();
        let shift = (magnitude >> bits).saturating_sub(1);
        let leading = u64::from(magnitude - (shift << bits));
        let low = leading << shift;
        let middle = low + ((1u64 << shift) - 1) / 2;
        if bucket < 0 {
            0i64.saturating_sub_unsigned(middle)
        } else {
            middle as i64
        }
    }

    fn buckets(bits: u32) -> (i32, i32) {
        (i64::MIN.bucket(bits), i64::MAX.bucket(bits))
    }
}

/// The bucket of a float is its exponent and the first bits of its fraction. Subnormals share buckets of one width; -∞, +∞ and NaN have
/// their own, in this order at the ends.
impl Bucketed for f64 {
    fn bucket(self, bits: u32) -> i32 {
        let x = if self.is_nan() { f64::NAN } else { self };
        let bucket = (x.abs().to_bits() >> (52 - bits)) as i32;
        if x < 0.0 { -1 - bucket } else { bucket }
    }

    fn middle(bucket: i32, bits: u32) -> f64 {
        let magnitude = if bucket < 0 { -1 - bucket } else { bucket } as u64;
        let low = magnitude << (52 - bits);
        let infinity = f64::INFINITY.to_bits();
        let x = match magnitude {
            0 => 0.0,
            _ if low == infinity => f64::INFINITY,
            _ if low > infinity => f64::NAN,
            _ => f64::from_bits(low + (1 << (51 - bits))),
        };
        if bucket < 0 { -x } else { x }
    }

    fn buckets(bits: u32) -> (i32, i32) {
        (f64::NEG_INFINITY.bucket(bits), f64::NAN.bucket(bits))
    }
}
