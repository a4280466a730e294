//! [`ReuseSampler`]: LRU stack distances of a stream of keys, exact while memory suffices and of a
//! sample of the keys from then on.
//!
//! That is SHARDS with a fixed size (Waldspurger, Park, Garthwaite and Ahmad 2015, "Efficient MRC
//! construction with SHARDS", FAST '15, sections 3 and 4): a key belongs to the sample by its hash, so
//! that all or none of its references do; distances among sampled keys are divided by the sampling
//! rate; and when the sample outgrows its memory, the rate is lowered and the keys that are no longer
//! in the sample are dropped. The paper drops one key at a time from a priority queue; here the
//! rate falls by a sixteenth at once, which needs no queue and so keeps more keys in the same memory.

use super::stack::Stack;
use crate::hash::mix;

/// Independent parts of the sample, from whose differences errors are estimated.
pub(super) const GROUPS: usize = 8;

/// Keys for which there is room at the start.
const KEYS_AT_FIRST: usize = 1024;

/// Finds the stack distances of a sample of keys.
#[derive(Clone, Debug)]
pub struct ReuseSampler {
    stack: Stack,
    /// The greatest hash in the sample.
    most: u64,
    bytes_max: usize,
}

/// What a reference to a key was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Touch {
    /// To a key that is not in the sample.
    Passed,
    /// The first one to its key.
    First(Sampled),
    /// To a key that was touched before, since when this many others were touched; an estimate unless the
    /// sample holds all keys.
    Again {
        /// The LRU stack distance: 0 for a key that is touched twice in a row. A cache that holds more keys
        /// than this hits.
        distance: u64,
        /// What the reference stands for.
        sampled: Sampled,
    },
}

/// What a reference in the sample stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The share of the keys that was in the sample.
    pub(super) rate: f64,
    /// Which part of the sample the key is in.
    pub(super) group: usize,
}

impl ReuseSampler {
    /// Fewest bytes that hold a useful sample.
    pub const BYTES_MIN: usize = 1 << 16;

    /// Never holds more than `bytes_max` on the heap, nor less than [`ReuseSampler::BYTES_MIN`]. Exact until
    /// that holds no more keys, some 48,000 to the MiB.
    pub fn new(bytes_max: usize) -> ReuseSampler {
        ReuseSampler::with_rate(bytes_max, 1.0)
    }

    /// The same that begins with a share `rate` of the keys instead of all. With room for all of them this is
    /// SHARDS with a fixed rate, and costs less time.
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

    /// Takes a reference to a key in.
    #[inline]
    pub fn touch(&mut self, key: u64) -> Touch {
        let hash = mix(key);
        if hash > self.most {
            return Touch::Passed;
        }
        self.touch_sampled(hash)
    }

    /// The share of all keys that is in the sample now; it never grows.
    pub fn rate(&self) -> f64 {
        (self.most as f64 + 1.0) / RANGE
    }

    /// Whether every key was in the sample so far, so that distances are exact.
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
                return Touch::Passed;
            }
        }
        let sampled = Sampled {
            rate: self.rate(),
            // Bits that choose neither the sample nor, in it, the place in the table.
            group: (hash >> 32) as usize % GROUPS,
        };
        match self.stack.touch(hash) {
            None => Touch::First(sampled),
            Some(distance) => Touch::Again {
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
            // The first sixteenth may, of few keys, hold none.
            while self.stack.len() == keys {
                self.most -= self.most / 16;
                self.stack.drop_above(self.most);
            }
        }
    }
}

/// How many hashes there are.
const RANGE: f64 = 18_446_744_073_709_551_616.0;

/// Keys of the last table before the largest. Both are there while keys move from one to the other, so
/// this one gets an eighth of the memory.
fn keys_small(bytes_max: usize) -> usize {
    keys_fitting(bytes_max / 8)
}

/// The most keys whose table takes no more than `bytes`, within a few.
fn keys_fitting(bytes: usize) -> usize {
    let mut keys = bytes / 16;
    while Stack::bytes_for(keys) > bytes {
        keys -= (Stack::bytes_for(keys) - bytes).div_ceil(32);
    }
    keys
}
