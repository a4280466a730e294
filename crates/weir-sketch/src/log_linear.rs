//! [`LogLinear`]: counts in buckets of equal relative width, for quantiles of a known relative
//! error.
//!
//! Each power of two is cut into 2^`BITS` buckets of equal width, as in HdrHistogram (Gil Tene) and
//! fio's completion latencies (`stat.h`, `FIO_IO_U_PLAT_BITS`, 6 there and 7 here by default). A
//! bucket is at most 2^-`BITS` of its values wide. Beside its count it keeps the mean of its
//! values, and is read there: so what comes out is within 2^-`BITS` of what went in, 1/128, never
//! beyond the greatest or the least value, and exact where values repeat, as sizes and queue depths
//! do.

use std::cmp::Ordering;
use std::marker::PhantomData;

use crate::codec::{self, Bytes, Malformed};

/// Buckets per power of two, as a power of two: the default.
pub const SUB_BUCKET_BITS: u32 = 7;

/// Bits of a value's place in its bucket; wider buckets drop the last ones. Some 2^31 values in one
/// bucket overflow the sum of places, and the bucket is then read somewhere else in it.
const OFFSET_BITS: u32 = 32;

/// Buckets lie in blocks of so many; a block is there once one of its buckets is.
const BLOCK_BITS: u32 = 4;
const BLOCK: usize = 1 << BLOCK_BITS;

/// What begins the bytes.
const VERSION: u8 = 1;

/// A number that has a bucket.
pub trait Bucketed: Copy {
    /// Its bucket among those with 2^`bits` to a power of two, and how far it lies in it, away from
    /// zero. Greater numbers have greater buckets.
    fn place(self, bits: u32) -> (i32, u32);

    /// The number at a place.
    fn at(bucket: i32, offset: u32, bits: u32) -> Self;

    /// The buckets there are, first and last.
    fn buckets(bits: u32) -> (i32, i32);
}

/// Counts by bucket, 16 bytes each. Integers take up to 260 kB, floats that span their whole range
/// 9 MB; latencies of one disk some 30 kB.
#[derive(Clone, Debug)]
pub struct LogLinear<V, const BITS: u32 = SUB_BUCKET_BITS> {
    total: i64,
    /// By place, which is the bucket number over [`BLOCK`].
    index: Vec<Place>,
    blocks: Vec<[Bucket; BLOCK]>,
    values: PhantomData<V>,
}

/// The values of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// How many.
    pub count: i64,
    /// How far they lie in the bucket, added up.
    pub offsets: i64,
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
        let (bucket, offset) = value.place(BITS);
        let offsets = i64::from(offset).wrapping_mul(weight);
        self.add_to_bucket(
            bucket,
            Bucket {
                count: weight,
                offsets,
            },
        );
    }

    /// How many values.
    pub fn total(&self) -> i64 {
        self.total
    }

    /// The `q`-quantile by nearest rank: the least value that at least a share `q` of all values
    /// does not exceed, within 2^-`BITS` of it. `None` without values. `q` is from 0 to 1.
    pub fn quantile(&self, q: f64) -> Option<V> {
        let total = u64::try_from(self.total).ok().filter(|&n| n > 0)?;
        let mut left = rank(q, total);
        for place in &self.index {
            let here = place.total.max(0) as u64;
            if left >= here {
                left -= here;
                continue;
            }
            for (i, bucket) in self.blocks[place.slot as usize].iter().enumerate() {
                let here = bucket.count.max(0) as u64;
                if left < here {
                    let mean = bucket.offsets.div_euclid(bucket.count);
                    let mean = mean.clamp(0, u32::MAX.into()) as u32;
                    return Some(V::at((place.place << BLOCK_BITS) + i as i32, mean, BITS));
                }
                left -= here;
            }
        }
        None
    }

    /// The buckets that are not empty, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (i32, Bucket)> + '_ {
        self.index.iter().flat_map(|place| {
            let buckets = self.blocks[place.slot as usize].iter().enumerate();
            let numbered =
                buckets.map(|(i, &bucket)| ((place.place << BLOCK_BITS) + i as i32, bucket));
            numbered.filter(|&(_, bucket)| bucket != Bucket::default())
        })
    }

    /// Takes everything of `other` in.
    pub fn merge(&mut self, other: &LogLinear<V, BITS>) {
        for (number, bucket) in other.buckets() {
            self.add_to_bucket(number, bucket);
        }
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.index.capacity() * size_of::<Place>()
            + self.blocks.capacity() * size_of::<[Bucket; BLOCK]>()
    }

    /// Appends its bytes: version, `BITS`, how many buckets, and of each the distance from the one
    /// before, the count and the offsets.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend([VERSION, BITS as u8]);
        codec::put_u64(out, self.buckets().count() as u64);
        let mut before = 0;
        for (number, bucket) in self.buckets() {
            codec::put_i64(out, i64::from(number) - before);
            codec::put_i64(out, bucket.count);
            codec::put_i64(out, bucket.offsets);
            before = i64::from(number);
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
        let mut number = 0i64;
        for _ in 0..bytes.length(3)? {
            number = number.wrapping_add(bytes.i64()?);
            if !(i64::from(first)..=i64::from(last)).contains(&number) {
                return Err(Malformed("there is no such bucket"));
            }
            let (count, offsets) = (bytes.i64()?, bytes.i64()?);
            histogram.add_to_bucket(number as i32, Bucket { count, offsets });
        }
        Ok(histogram)
    }

    /// Adds values that somebody else has counted, to a bucket of [`Bucketed::buckets`].
    pub fn add_to_bucket(&mut self, number: i32, added: Bucket) {
        if added == Bucket::default() {
            return;
        }
        let (place, i) = (number >> BLOCK_BITS, number as usize % BLOCK);
        let at = match self.index.binary_search_by_key(&place, |p| p.place) {
            Ok(at) => at,
            Err(at) => {
                let slot = self.blocks.len() as u32;
                self.blocks.push([Bucket::default(); BLOCK]);
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
        place.total = place.total.wrapping_add(added.count);
        let bucket = &mut self.blocks[place.slot as usize][i];
        bucket.count = bucket.count.wrapping_add(added.count);
        bucket.offsets = bucket.offsets.wrapping_add(added.offsets);
        self.total = self.total.wrapping_add(added.count);
        if self.total == 0 && self.buckets().next().is_none() {
            *self = LogLinear::default();
        }
    }
}

/// The nearest rank of `q` among `total` values, counted from 0: ⌈q · total⌉ - 1. A product within
/// rounding of a whole number is taken for that number, so that 0.07 of 100 is 7 and not 8.
pub(crate) fn rank(q: f64, total: u64) -> u64 {
    let product = q * total as f64;
    let whole = product.round();
    let near = (product - whole).abs() <= whole * 4.0 * f64::EPSILON;
    let rank = if near { whole } else { product.ceil() };
    (rank as u64).clamp(1, total) - 1
}

/// Buckets of |x| are 0, 1, .. one value wide up to 2^(bits + 1), then twice as wide with each
/// power of two; those of negative numbers mirror them.
impl Bucketed for i64 {
    fn place(self, bits: u32) -> (i32, u32) {
        let magnitude = self.unsigned_abs();
        let shift = (magnitude | 1).ilog2().saturating_sub(bits);
        let bucket = (shift << bits) as i32 + (magnitude >> shift) as i32;
        let inside = magnitude & ((1 << shift) - 1);
        let offset = (inside >> shift.saturating_sub(OFFSET_BITS)) as u32;
        (if self < 0 { -bucket } else { bucket }, offset)
    }

    fn at(bucket: i32, offset: u32, bits: u32) -> i64 {
        let number = bucket.unsigned_abs();
        let shift = (number >> bits).saturating_sub(1);
        let low = u64::from(number - (shift << bits)) << shift;
        let inside = u64::from(offset) << shift.saturating_sub(OFFSET_BITS);
        let magnitude = low + inside.min((1 << shift) - 1);
        match bucket < 0 {
            true => 0i64.saturating_sub_unsigned(magnitude),
            false => i64::try_from(magnitude).unwrap_or(i64::MAX),
        }
    }

    fn buckets(bits: u32) -> (i32, i32) {
        (i64::MIN.place(bits).0, i64::MAX.place(bits).0)
    }
}

/// The bucket of a float is its exponent and the first bits of its fraction. Subnormals share
/// buckets of one width; -∞, +∞ and NaN have their own, in this order at the ends.
impl Bucketed for f64 {
    fn place(self, bits: u32) -> (i32, u32) {
        let x = if self.is_nan() { f64::NAN } else { self };
        let magnitude = x.abs().to_bits();
        let bucket = (magnitude >> (52 - bits)) as i32;
        let inside = magnitude & ((1 << (52 - bits)) - 1);
        let offset = (inside >> (52 - bits).saturating_sub(OFFSET_BITS)) as u32;
        (if x < 0.0 { -1 - bucket } else { bucket }, offset)
    }

    fn at(bucket: i32, offset: u32, bits: u32) -> f64 {
        let number = if bucket < 0 { -1 - bucket } else { bucket } as u64;
        let inside = u64::from(offset) << (52 - bits).saturating_sub(OFFSET_BITS);
        let inside = inside.min((1 << (52 - bits)) - 1);
        let low = number << (52 - bits);
        let infinity = f64::INFINITY.to_bits();
        let x = match low.cmp(&infinity) {
            Ordering::Less => f64::from_bits(low + inside),
            Ordering::Equal => f64::INFINITY,
            Ordering::Greater => f64::NAN,
        };
        if bucket < 0 { -x } else { x }
    }

    fn buckets(bits: u32) -> (i32, i32) {
        (f64::NEG_INFINITY.place(bits).0, f64::NAN.place(bits).0)
    }
}
