//! [`ReuseHistogram`]: the distribution of stack distances, and the resulting miss-ratio curve.
//!
//! An LRU cache that holds `size` keys hits a reference if its stack distance is below `size`
//! (Mattson and others 1970): one histogram gives the miss ratio of every size. A sampled reference
//! is weighted by the inverse of the sampling rate at its time. The difference between the
//! estimated and the actual number of references is added to distance 0, as in SHARDS-adj
//! (Waldspurger and others 2015, section 3.2): the actual number is known, and the difference stems
//! from few, hot keys.

use super::sampler::{GROUPS, Sampled, Touch};
use crate::log_linear::Bucketed;

/// Bins per power of two, as a power of two, of the groups from which errors are estimated.
const GROUP_BITS: u32 = 3;

/// Student's t for 95 % and the 7 degrees of freedom of [`GROUPS`].
const T_95: f64 = 2.365;

/// Distances by bin, and first references.
#[derive(Clone, Debug, PartialEq)]
pub struct ReuseHistogram {
    references: u64,
    all: Distances,
    groups: Vec<Distances>,
    /// The lowest sampling rate of a reference.
    rate: f64,
}

/// The miss ratio of an LRU cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MissRatio {
    /// Keys that the cache holds.
    pub size: u64,
    /// The share of references that miss, first references included.
    pub ratio: f64,
    /// The half width of the 95 % confidence interval of the ratio.
    pub error: f64,
}

/// Weights by distance.
#[derive(Clone, Debug)]
struct Distances {
    bits: u32,
    first: f64,
    /// By bin of [`Bucketed`] with 2^bits to a power of two.
    bins: Vec<f64>,
}

impl ReuseHistogram {
    /// Bins per power of two, as a power of two, that keep distances below 2^21 separate: 8 bytes
    /// for each up to the greatest, so 16 MiB, and 8 MiB for each power of two beyond.
    pub const EXACT_BITS: u32 = 20;

    /// The same for fixed memory: sizes within 1/128, at most [`ReuseHistogram::SKETCH_BYTES_MAX`].
    pub const SKETCH_BITS: u32 = 7;

    /// The largest size of a histogram with [`ReuseHistogram::SKETCH_BITS`].
    pub const SKETCH_BYTES_MAX: usize =
        8 * (64 << 7) + GROUPS * (8 * (64 << GROUP_BITS) + size_of::<Distances>());

    /// An empty histogram with 2^`bits` bins per power of two, at most
    /// [`ReuseHistogram::EXACT_BITS`].
    pub fn new(bits: u32) -> ReuseHistogram {
        let bits = bits.min(ReuseHistogram::EXACT_BITS);
        ReuseHistogram {
            references: 0,
            all: Distances::new(bits),
            groups: vec![Distances::new(GROUP_BITS); GROUPS],
            rate: 1.0,
        }
    }

    /// Adds a reference.
    #[inline]
    pub fn add(&mut self, touch: Touch) {
        self.references += 1;
        match touch {
            Touch::Unsampled => {}
            Touch::First(sampled) => self.add_sampled(sampled, None),
            Touch::Repeated { distance, sampled } => self.add_sampled(sampled, Some(distance)),
        }
    }

    /// The number of references.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// The number of first references, which is the number of distinct keys; an estimate if
    /// sampled.
    pub fn distinct(&self) -> f64 {
        self.all.first
    }

    /// Whether all keys were in the sample.
    pub fn is_exact(&self) -> bool {
        self.rate >= 1.0
    }

    /// The greatest distance, to the precision of its bin; `None` if no key was referenced twice.
    pub fn greatest(&self) -> Option<u64> {
        let bin = self.all.bins.iter().rposition(|&weight| weight > 0.0)?;
        Some(self.all.span(bin).1)
    }

    /// The nonempty bins, ascending: least and greatest distance, and the number of references.
    pub fn distances(&self) -> impl Iterator<Item = (u64, u64, f64)> + '_ {
        let bins = self.all.bins.iter().enumerate();
        let present = bins.filter(|(_, weight)| **weight > 0.0);
        present.map(|(bin, &weight)| {
            let (least, greatest) = self.all.span(bin);
            (least, greatest, weight)
        })
    }

    /// The miss ratio of an LRU cache that holds `size` keys; 1 without references.
    pub fn miss_ratio(&self, size: u64) -> MissRatio {
        if self.references == 0 {
            let (ratio, error) = (1.0, 0.0);
            return MissRatio { size, ratio, error };
        }
        MissRatio {
            size,
            ratio: self.ratio(self.all.misses(size).0),
            error: self.error(size),
        }
    }

    /// [`ReuseHistogram::miss_ratio`] of each size.
    pub fn curve(&self, sizes: impl IntoIterator<Item = u64>) -> Vec<MissRatio> {
        sizes
            .into_iter()
            .map(|size| self.miss_ratio(size))
            .collect()
    }

    /// Adds the references of `other`, of other keys or other times. The curve then describes two
    /// separate caches of the given size each: a shared cache depends on how the references
    /// interleave, which a histogram does not record.
    pub fn merge(&mut self, other: &ReuseHistogram) {
        self.references = self.references.saturating_add(other.references);
        self.rate = self.rate.min(other.rate);
        self.all.merge(&other.all);
        for (mine, others) in self.groups.iter_mut().zip(&other.groups) {
            mine.merge(others);
        }
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        let groups = self.groups.iter().map(Distances::bytes).sum::<usize>();
        self.all.bytes() + groups + self.groups.capacity() * size_of::<Distances>()
    }

    fn add_sampled(&mut self, sampled: Sampled, distance: Option<u64>) {
        let weight = 1.0 / sampled.rate;
        self.rate = self.rate.min(sampled.rate);
        self.all.add(distance, weight);
        self.groups[sampled.group].add(distance, weight);
    }

    fn ratio(&self, misses: f64) -> f64 {
        (misses / self.references as f64).clamp(0.0, 1.0)
    }

    /// Three sources of error; the second and third are 0 if every key is sampled: the size lies
    /// inside a bin; other keys might have been sampled, estimated from the differences between
    /// groups; and distances among n sampled keys have a relative error of 1/√n.
    fn error(&self, size: u64) -> f64 {
        let inside = self.all.misses(size).1 / self.references as f64;
        let unsampled = 1.0 - self.rate;
        if unsampled <= 0.0 {
            return inside;
        }
        let whole = GROUPS as f64;
        let misses: Vec<f64> = self
            .groups
            .iter()
            .map(|g| g.misses(size).0 * whole)
            .collect();
        let mean = misses.iter().sum::<f64>() / whole;
        let squares = misses.iter().map(|m| (m - mean).powi(2)).sum::<f64>();
        let of_keys = squares / (whole - 1.0) / whole * unsampled;

        let sampled_keys = (size as f64 * self.rate).max(1.0);
        let reach = (unsampled / sampled_keys).sqrt();
        let at = |factor: f64| self.ratio(self.all.misses((size as f64 * factor) as u64).0);
        let of_distance = (at(1.0 - reach) - at(1.0 + reach)) / 2.0;
        let deviation = (of_keys / (self.references as f64).powi(2) + of_distance.powi(2)).sqrt();
        (inside + T_95 * deviation).min(1.0)
    }
}

/// Equal distances, regardless of spare capacity.
impl PartialEq for Distances {
    fn eq(&self, other: &Distances) -> bool {
        let present = |d: &Distances| d.bins.iter().rposition(|&w| w > 0.0).map_or(0, |i| i + 1);
        let same = |d: &Distances| (d.bits, d.first.to_bits(), present(d));
        let bins = present(self);
        same(self) == same(other) && self.bins[..bins] == other.bins[..bins]
    }
}

impl Distances {
    fn new(bits: u32) -> Distances {
        Distances {
            bits,
            first: 0.0,
            bins: Vec::new(),
        }
    }

    fn add(&mut self, distance: Option<u64>, weight: f64) {
        let Some(distance) = distance else {
            self.first += weight;
            return;
        };
        let bin = self.bin(distance);
        if bin >= self.bins.len() {
            self.grow_to(bin);
        }
        self.bins[bin] += weight;
    }

    /// Grows up to `bin`: by doubling within the first power of two, then by one power of two at a
    /// time.
    fn grow_to(&mut self, bin: usize) {
        let bins = (bin + 1)
            .next_power_of_two()
            .min((bin + 1).next_multiple_of(1 << self.bits));
        self.bins.reserve_exact(bins - self.bins.len());
        self.bins.resize(bins, 0.0);
    }

    fn merge(&mut self, other: &Distances) {
        self.first += other.first;
        for (bin, &weight) in other.bins.iter().enumerate() {
            if weight > 0.0 {
                self.add(Some(other.span(bin).0), weight);
            }
        }
    }

    /// The weight of the misses in a cache of `size` keys, and how much of it is interpolated in a
    /// bin.
    fn misses(&self, size: u64) -> (f64, f64) {
        let size = size.min(i64::MAX as u64);
        let cut = self.bin(size);
        let beyond: f64 = self.bins.iter().skip(cut + 1).sum();
        let Some(&here) = self.bins.get(cut) else {
            return (self.first, 0.0);
        };
        let (least, greatest) = self.span(cut);
        let share = (greatest - size + 1) as f64 / (greatest - least + 1) as f64;
        let inside = if share < 1.0 {
            share.max(1.0 - share) * here
        } else {
            0.0
        };
        (self.first + beyond + share * here, inside)
    }

    fn bin(&self, distance: u64) -> usize {
        let distance = i64::try_from(distance).unwrap_or(i64::MAX);
        distance.locate(self.bits).0 as usize
    }

    fn span(&self, bin: usize) -> (u64, u64) {
        let at = |offset| i64::at(bin as i32, offset, self.bits) as u64;
        (at(0), at(u32::MAX))
    }

    fn bytes(&self) -> usize {
        self.bins.capacity() * size_of::<f64>()
    }
}
