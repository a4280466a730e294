//! [`LogLinear`]: counts in buckets of equal relative width, for quantiles of a known relative
//! error.
//!
//! Each power of two is divided into 2^`BITS` buckets of equal width, as in HdrHistogram (Gil Tene)
//! and fio's completion latencies (`stat.h`, `FIO_IO_U_PLAT_BITS`, 6 there and 7 here by default).
//! A bucket is at most 2^-`BITS` of its values wide. Besides its count it stores the mean of its
//! values, which represents them: a result is within 2^-`BITS` (1/128) of the true value, never
//! outside the range of the values, and exact for repeated values such as sizes and queue depths.

use std::cmp::Ordering;
use std::marker::PhantomData;

use crate::codec::{self, Bytes, SketchDecodeError};

/// The default number of buckets per power of two, as a power of two.
pub const SUB_BUCKET_BITS: u32 = 7;

/// Bits of the offset of a value in its bucket; wider buckets drop the lowest bits. About 2^31
/// values in one bucket overflow the sum of offsets; the bucket then reports a wrong value within
/// it.
const OFFSET_BITS: u32 = 32;

/// The number of buckets in a block, as a power of two. A block is allocated with its first bucket.
const BLOCK_BITS: u32 = 4;
const BLOCK: usize = 1 << BLOCK_BITS;

/// The version byte of the encoding.
const VERSION: u8 = 1;

/// A number that can be assigned to a bucket.
pub trait Bucketed: Copy {
    /// The bucket, with 2^`bits` buckets per power of two, and the offset in the bucket, away from
    /// zero. Monotonic in the value.
    fn locate(self, bits: u32) -> (i32, u32);

    /// The number with this bucket and offset.
    fn at(bucket: i32, offset: u32, bits: u32) -> Self;

    /// The first and the last bucket.
    fn buckets(bits: u32) -> (i32, i32);
}

/// Counts by bucket, 16 bytes each. Integers take up to 260 kB, floats over their whole range
/// 9 MB, the latencies of one disk about 30 kB.
#[derive(Clone, Debug)]
pub struct LogLinear<V, const BITS: u32 = SUB_BUCKET_BITS> {
    total: i64,
    /// Blocks by number, which is the bucket number divided by [`BLOCK`].
    index: Vec<BlockEntry>,
    blocks: Vec<[Bucket; BLOCK]>,
    values: PhantomData<V>,
}

/// The values of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The number of values.
    pub count: i64,
    /// The sum of their offsets in the bucket.
    pub offsets: i64,
}

#[derive(Clone, Copy, Debug)]
struct BlockEntry {
    entry: i32,
    /// Index in `blocks`.
    slot: u32,
    /// The sum of the block's counts.
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
    /// Adds `weight` copies of `value`; removes them if negative.
    pub fn add(&mut self, value: V, weight: i64) {
        let (bucket, offset) = value.locate(BITS);
        let offsets = i64::from(offset).wrapping_mul(weight);
        self.add_to_bucket(
            bucket,
            Bucket {
                count: weight,
                offsets,
            },
        );
    }

    /// The number of values.
    pub fn total(&self) -> i64 {
        self.total
    }

    /// The `q`-quantile by nearest rank: the least value such that at least a share `q` of all
    /// values does not exceed it, within 2^-`BITS`. `None` without values. `q` is from 0 to 1.
    pub fn quantile(&self, q: f64) -> Option<V> {
        let total = u64::try_from(self.total).ok().filter(|&n| n > 0)?;
        let mut left = rank(q, total);
        for entry in &self.index {
            let here = entry.total.max(0) as u64;
            if left >= here {
                left -= here;
                continue;
            }
            for (i, bucket) in self.blocks[entry.slot as usize].iter().enumerate() {
                let here = bucket.count.max(0) as u64;
                if left < here {
                    let mean = bucket.offsets.div_euclid(bucket.count);
                    let mean = mean.clamp(0, u32::MAX.into()) as u32;
                    return Some(V::at((entry.entry << BLOCK_BITS) + i as i32, mean, BITS));
                }
                left -= here;
            }
        }
        None
    }

    /// The nonempty buckets, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (i32, Bucket)> + '_ {
        self.index.iter().flat_map(|entry| {
            let buckets = self.blocks[entry.slot as usize].iter().enumerate();
            let numbered =
                buckets.map(|(i, &bucket)| ((entry.entry << BLOCK_BITS) + i as i32, bucket));
            numbered.filter(|&(_, bucket)| bucket != Bucket::default())
        })
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &LogLinear<V, BITS>) {
        for (number, bucket) in other.buckets() {
            self.add_to_bucket(number, bucket);
        }
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.index.capacity() * size_of::<BlockEntry>()
            + self.blocks.capacity() * size_of::<[Bucket; BLOCK]>()
    }

    /// Appends the encoded histogram: version, `BITS`, the number of buckets, then for each bucket
    /// the distance from the previous one, the count and the offsets.
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

    /// Decodes a histogram written by [`LogLinear::encode`].
    ///
    /// # Errors
    /// If the bytes are invalid, or of another version or width.
    pub fn decode(bytes: &mut Bytes<'_>) -> Result<LogLinear<V, BITS>, SketchDecodeError> {
        if bytes.array()? != [VERSION, BITS as u8] {
            return Err(SketchDecodeError(
                "a histogram of another version or bucket width",
            ));
        }
        let (first, last) = V::buckets(BITS);
        let mut histogram = LogLinear::default();
        let mut number = 0i64;
        for _ in 0..bytes.length(3)? {
            number = number.wrapping_add(bytes.i64()?);
            if !(i64::from(first)..=i64::from(last)).contains(&number) {
                return Err(SketchDecodeError("invalid bucket"));
            }
            let (count, offsets) = (bytes.i64()?, bytes.i64()?);
            histogram.add_to_bucket(number as i32, Bucket { count, offsets });
        }
        Ok(histogram)
    }

    /// Adds values counted elsewhere to a bucket of [`Bucketed::buckets`].
    pub fn add_to_bucket(&mut self, number: i32, added: Bucket) {
        if added == Bucket::default() {
            return;
        }
        let (entry, i) = (number >> BLOCK_BITS, number as usize % BLOCK);
        let at = match self.index.binary_search_by_key(&entry, |p| p.entry) {
            Ok(at) => at,
            Err(at) => {
                let slot = self.blocks.len() as u32;
                self.blocks.push([Bucket::default(); BLOCK]);
                self.index.insert(
                    at,
                    BlockEntry {
                        entry,
                        slot,
                        total: 0,
                    },
                );
                at
            }
        };
        let entry = &mut self.index[at];
        entry.total = entry.total.wrapping_add(added.count);
        let bucket = &mut self.blocks[entry.slot as usize][i];
        bucket.count = bucket.count.wrapping_add(added.count);
        bucket.offsets = bucket.offsets.wrapping_add(added.offsets);
        self.total = self.total.wrapping_add(added.count);
        if self.total == 0 && self.buckets().next().is_none() {
            *self = LogLinear::default();
        }
    }
}

/// The nearest rank of `q` among `total` values, counted from 0: ⌈q · total⌉ - 1. A product within
/// rounding error of an integer counts as that integer: 0.07 of 100 is 7, not 8.
pub(crate) fn rank(q: f64, total: u64) -> u64 {
    let product = q * total as f64;
    let whole = product.round();
    let near = (product - whole).abs() <= whole * 4.0 * f64::EPSILON;
    let rank = if near { whole } else { product.ceil() };
    (rank as u64).clamp(1, total) - 1
}

/// Buckets of |x| are one value wide (0, 1, ..) up to 2^(bits + 1), then twice as wide with each
/// power of two; buckets of negative numbers mirror them.
impl Bucketed for i64 {
    fn locate(self, bits: u32) -> (i32, u32) {
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
        (i64::MIN.locate(bits).0, i64::MAX.locate(bits).0)
    }
}

/// The bucket of a float is its exponent and the first bits of its fraction. Subnormals share
/// buckets of one width; -∞, +∞ and NaN have their own, in this order at the ends.
impl Bucketed for f64 {
    fn locate(self, bits: u32) -> (i32, u32) {
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
        (f64::NEG_INFINITY.locate(bits).0, f64::NAN.locate(bits).0)
    }
}
