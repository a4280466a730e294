//! A hash of 64-bit keys whose every bit depends on every bit of the key.
//!
//! The finalizer of MurmurHash3 (Austin Appleby, public domain, `fmix64`). It is a permutation:
//! distinct keys have distinct hashes.

/// The hash of `key`.
#[inline]
pub(crate) fn mix(mut key: u64) -> u64 {
    // The finalizer maps 0 to 0, so key 0 (a first block) would always be in the sample.
    key ^= 0x9e37_79b9_7f4a_7c15;
    key ^= key >> 33;
    key = key.wrapping_mul(0xff51_afd7_ed55_8ccd);
    key ^= key >> 33;
    key = key.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}
