//! [`ReuseSampler`]: LRU stack distances of a stream of keys, exact while memory suffices and for a
//! sample of the keys from then on.
//!
//! This is SHARDS with a fixed size (Waldspurger, Park, Garthwaite and Ahmad 2015, "Efficient MRC
//! construction with SHARDS", FAST '15, sections 3 and 4). The hash of a key decides whether it is
//! in the sample, so all or none of its references are. Distances among sampled keys are divided by
//! the sampling rate. When the sample exceeds its memory, the rate is lowered and keys outside the
//! new sample are dropped. The paper drops one key at a time from a priority queue; here the rate
//! falls by a sixteenth at once, which needs no queue and keeps more keys in the same memory.

use super::stack::Stack;
use crate::hash::mix;

/// Independent groups of the sample, from whose differences errors are estimated.
pub(super) const GROUPS: usize = 8;

/// The initial capacity, in keys.
const KEYS_AT_FIRST: usize = 1024;

/// Computes the stack distances of a sample of keys.
#[derive(Clone, Debug)]
pub struct ReuseSampler {
    stack: Stack,
    /// The greatest hash in the sample.
    most: u64,
    bytes_max: usize,
}

/// The classification of a reference to a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Touch {
    /// The key is not in the sample.
    Unsampled,
    /// The first reference to the key.
    First(Sampled),
    /// A repeated reference to the key; the distance is an estimate unless the sample holds all
    /// keys.
    Repeated {
        /// The LRU stack distance: 0 for a key that is touched twice in a row. A cache that holds
        /// more keys than this hits.
        distance: u64,
        /// The weight of the reference.
        sampled: Sampled,
    },
}

/// The weight of a sampled reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The share of the keys that was in the sample.
    pub(super) rate: f64,
    /// The group of the key in the sample.
    pub(super) group: usize,
}

impl ReuseSampler {
    /// The smallest useful memory, in bytes.
    pub const BYTES_MIN: usize = 1 << 16;

    /// A sampler that uses at most `bytes_max` on the heap, or [`ReuseSampler::BYTES_MIN`] if
    /// larger. Exact until the memory is full, at about 48,000 keys per MiB.
    pub fn new(bytes_max: usize) -> ReuseSampler {
        ReuseSampler::with_rate(bytes_max, 1.0)
    }

    /// The same, but starts with a share `rate` of the keys instead of all. If memory suffices for
    /// that sample, this is SHARDS with a fixed rate, and costs less time.
    pub fn with_rate(bytes_max: usize, rate: f64) -> ReuseSampler {
        let bytes_max = bytes_max.clamp(ReuseSampler::BYTES_MIN, 1 << 32);
        let most = match rate < 1.0 {
            true => (rate.max(0.0) * RANGE) as u64,
            false => u64::MAX,
        };
        ReuseSampler {
            stack: Stack::new(KEYS_AT_FIRST.min(keys_small(bytes_max))),
            most,
            bytes_max,
        }
    }

    /// Adds a reference to a key.
    #[inline]
    pub fn touch(&mut self, key: u64) -> Touch {
        let hash = mix(key);
        if hash > self.most {
            return Touch::Unsampled;
        }
        self.touch_sampled(hash)
    }

    /// The share of all keys that is in the sample now; it never grows.
    pub fn rate(&self) -> f64 {
        (self.most as f64 + 1.0) / RANGE
    }

    /// Whether every key has been in the sample so far, so that distances are exact.
    pub fn is_exact(&self) -> bool {
        self.most == u64::MAX
    }

    /// Keys in the sample.
    pub fn keys(&self) -> usize {
        self.stack.len()
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.stack.bytes()
    }

    fn touch_sampled(&mut self, hash: u64) -> Touch {
        if self.stack.len() == self.stack.keys_max() && !self.stack.contains(hash) {
            self.make_room();
            if hash > self.most {
                return Touch::Unsampled;
            }
        }
        let sampled = Sampled {
            rate: self.rate(),
            // Bits that determine neither membership in the sample nor the slot in the table.
            group: (hash >> 32) as usize % GROUPS,
        };
        match self.stack.touch(hash) {
            None => Touch::First(sampled),
            Some(distance) => Touch::Repeated {
                distance: (distance as f64 / sampled.rate).round() as u64,
                sampled,
            },
        }
    }

    fn make_room(&mut self) {
        let small = keys_small(self.bytes_max);
        let large = keys_fitting(self.bytes_max - Stack::bytes_for(small));
        let keys = self.stack.keys_max();
        if keys < small {
            self.stack = self.stack.grown((2 * keys).min(small));
        } else if keys < large {
            self.stack = self.stack.grown(large);
        } else {
            // With few keys, the first sixteenth may be empty.
            while self.stack.len() == keys {
                self.most -= self.most / 16;
                self.stack.drop_above(self.most);
            }
        }
    }
}

/// The number of hashes.
const RANGE: f64 = 18_446_744_073_709_551_616.0;

/// The capacity of the table before the largest. Both exist while keys are moved between them, so
/// this one gets an eighth of the memory.
fn keys_small(bytes_max: usize) -> usize {
    keys_fitting(bytes_max / 8)
}

/// The largest number of keys whose table takes at most `bytes`, within a few.
fn keys_fitting(bytes: usize) -> usize {
    let mut keys = bytes / 16;
    while Stack::bytes_for(keys) > bytes {
        keys -= (Stack::bytes_for(keys) - bytes).div_ceil(32);
    }
    keys
}
