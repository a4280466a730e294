//! A hash of 64-bit keys whose every bit depends on every bit of the key.
//!
//! It is the finalizer of MurmurHash3 (Austin Appleby, public domain, `fmix64`): a permutation, so that
//! no two keys share a hash.

/// The hash of `key`.
#[inline]
pub(crate) fn mix(mut key: u64) -> u64 {
    // The finalizer leaves 0 where it is, and a first block 0 would never be sampled out.
    key ^= 0x9e37_79b9_7f4a_7c15;
    key ^= key >> 33;
    key = key.wrapping_mul(0xff51_afd7_ed55_8ccd);
    key ^= key >> 33;
    key = key.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}
