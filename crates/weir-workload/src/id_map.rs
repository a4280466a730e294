//! [`IdMap`]: a hash table by ids and symbols, with a hash function of a few instructions.
//!
//! Such keys are numbers of our own: no input can make many of them collide. A table with other
//! keys must have a bound at which a search through all of them is acceptable.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash table by numbers.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Hashes numbers one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, id: u32) {
        self.write_u64(id.into());
    }

    /// Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4), both halves of
    /// the product.
    fn write_u64(&mut self, id: u64) {
        let product = u128::from(self.0 ^ id) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write_i64(&mut self, id: i64) {
        self.write_u64(id as u64);
    }

    /// The variant of an [`Option`].
    fn write_isize(&mut self, variant: isize) {
        self.write_u64(variant as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
