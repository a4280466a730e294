//! [`Distinct`]: an estimate of the number of distinct keys, in 2 KiB.
//!
//! HyperLogLog (Flajolet, Fusy, Gandouet and Meunier 2007) with 2048 registers of one byte, with
//! the improved estimator of Ertl (2017, "New cardinality estimation algorithms for HyperLogLog
//! sketches", section 3), which needs no correction tables and is accurate for few and many keys.

use crate::hash::mix;

/// The number of registers, as a power of two.
const BITS: u32 = 11;
const REGISTERS: usize = 1 << BITS;

/// The greatest value of a register: one more than the hash bits that do not select the register.
const RANK_MAX: u8 = 64 - BITS as u8 + 1;

/// An approximate set of keys that can only estimate its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distinct {
    /// For each register, the most leading zeros of the hashes of its keys, plus one.
    registers: Box<[u8]>,
}

impl Default for Distinct {
    fn default() -> Distinct {
        Distinct {
            registers: vec![0; REGISTERS].into(),
        }
    }
}

impl Distinct {
    /// The standard deviation of [`Distinct::count`], relative to the true number: 1.04 / √2048.
    pub const ERROR: f64 = 0.023;

    /// The register of a key and its rank there.
    #[inline]
    pub fn place(key: u64) -> (usize, u8) {
        let hash = mix(key);
        // The lowest bit set bounds the rank, in place of the bits that selected the register.
        let rank = ((hash << BITS) | 1 << (BITS - 1)).leading_zeros() as u8 + 1;
        ((hash >> (64 - BITS)) as usize, rank)
    }

    /// The set of the keys with these places; places that no key has are ignored.
    pub fn of_places(places: impl Iterator<Item = (usize, u8)>) -> Distinct {
        let mut distinct = Distinct::default();
        for (register, rank) in places.filter(|(_, rank)| *rank <= RANK_MAX) {
            if register < REGISTERS {
                distinct.add_place(register, rank);
            }
        }
        distinct
    }

    /// Adds a key that has this [`Distinct::place`].
    ///
    /// # Panics
    /// If no key has it.
    #[inline]
    pub fn add_place(&mut self, register: usize, rank: u8) {
        debug_assert!(rank <= RANK_MAX, "no key has rank {rank}");
        let register = &mut self.registers[register];
        *register = (*register).max(rank);
    }

    /// Adds a key.
    #[inline]
    pub fn add(&mut self, key: u64) {
        let (register, rank) = Distinct::place(key);
        self.add_place(register, rank);
    }

    /// The estimated number of distinct keys.
    pub fn count(&self) -> f64 {
        let mut counts = [0u32; RANK_MAX as usize + 1];
        for &rank in &self.registers {
            counts[usize::from(rank)] += 1;
        }
        let m = REGISTERS as f64;
        let [none, between @ .., full] = &counts[..] else {
            unreachable!("ranks go from 0 to RANK_MAX");
        };
        let mut z = m * tau(1.0 - f64::from(*full) / m);
        for count in between.iter().rev() {
            z = 0.5 * (z + f64::from(*count));
        }
        z += m * sigma(f64::from(*none) / m);
        m * m / (2.0 * std::f64::consts::LN_2 * z)
    }

    /// Merges `other` into this: the union of both.
    pub fn merge(&mut self, other: &Distinct) {
        for (mine, &others) in self.registers.iter_mut().zip(&other.registers) {
            *mine = (*mine).max(others);
        }
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.registers.len()
    }
}

/// x + Σ x^(2^k) · 2^(k-1), for the share of registers without a key.
fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut sum, mut factor) = (x, 1.0);
    loop {
        x *= x;
        let before = sum;
        sum += x * factor;
        factor += factor;
        if sum == before {
            return sum;
        }
    }
}

/// (1 - x - Σ (1 - x^(2^-k))² · 2^-k) / 3, for the share of registers that are saturated.
fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut sum, mut factor) = (1.0 - x, 1.0);
    loop {
        x = x.sqrt();
        let before = sum;
        factor *= 0.5;
        sum -= (1.0 - x).powi(2) * factor;
        if sum == before {
            return sum / 3.0;
        }
    }
}
