//! [`Regions`]: the parts of a disk with sectors of a set, as a counting Bloom filter (Fan and
//! others 2000, section V).

use super::STRIDE_SECTORS_MAX;

/// Sectors of a region, as a power of two: the sectors at most [`STRIDE_SECTORS_MAX`] from one are
/// in at most two regions.
const REGION_BITS: u32 = 14;

/// The number of counters, as a power of two.
const COUNTERS_BITS: u32 = 12;

const _: () = assert!(1 << REGION_BITS >= 2 * STRIDE_SECTORS_MAX);

/// The number of sectors by region. Sectors are modulo 2^32. Two regions may have one counter.
#[derive(Clone, Debug)]
pub(super) struct Regions(Box<[u16]>);

impl Default for Regions {
    fn default() -> Regions {
        Regions(vec![0; 1 << COUNTERS_BITS].into())
    }
}

impl Regions {
    /// Adds a sector.
    pub(super) fn add(&mut self, sector: u32) {
        self.0[counter(sector)] += 1;
    }

    /// Removes a sector that was added.
    pub(super) fn remove(&mut self, sector: u32) {
        self.0[counter(sector)] -= 1;
    }

    /// Whether a sector of the set may be equal to one of these, or at most [`STRIDE_SECTORS_MAX`]
    /// from `first`.
    pub(super) fn may_have_any(&self, first: i64, end: i64) -> bool {
        let distance = STRIDE_SECTORS_MAX as i64;
        let sectors = [first - distance, first + distance, end];
        sectors
            .iter()
            .any(|sector| self.0[counter(*sector as u32)] != 0)
    }
}

/// Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4).
fn counter(sector: u32) -> usize {
    let region = sector >> REGION_BITS;
    (region.wrapping_mul(0x9e37_79b9) >> (32 - COUNTERS_BITS)) as usize
}
