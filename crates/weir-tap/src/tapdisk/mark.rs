//! [`RequestMark`]: what a tapdisk stores about a request of a virtual disk while its calls are in
//! io_uring. The `user_data` of these calls is its address.
//!
//! The kernel programs of [`IOpath`](crate::ebpf::streams::iopath) read it while the tapdisk
//! submits the call, in the thread that has written it. Until the request has ended, its mark is
//! not used for another one, so a number or an address that is used again is never confused.
//!
//! | word | content |
//! | --- | --- |
//! | 0 | [`MAGIC`] |
//! | 1 | the address of the mark |
//! | 2 | the number of the request, as in column `req_id` of its rows: [`request_number`] |
//! | 3 | the disk: [`disk_key`] |
//! | 4 | when the tapdisk received the request, CLOCK_MONOTONIC in ns |
//! | 5-7 | zeros |
//!
//! `struct request_mark` of `submission.bpf.h` has the same words.

use std::sync::atomic::{AtomicU64, Ordering};

/// The first word of a mark: `weirmark`, and the version.
pub const MAGIC: u64 = u64::from_be_bytes(*b"weirmrk\x01");

/// Bits of a `user_data` that are 0 in the address of a mark, and free for the tapdisk.
pub const FREE_BITS: u64 = 1;

/// Request numbers of one disk are below 2 to this power, so that numbers of several disks differ:
/// the thesis's queries pair by the number alone. At a million requests a second that is nine
/// years.
pub const REQUEST_BITS: u32 = 48;

/// The number of a request among all disks of its tapdisk.
pub fn request_number(disk: u16, id: u64) -> u64 {
    u64::from(disk) << REQUEST_BITS | id & ((1 << REQUEST_BITS) - 1)
}

/// Identifies a disk in its process: a hash (FNV-1a) of the names with which the tapdisk was
/// started. It is not 0.
pub fn disk_key(vm: Option<&str>, vdisk: Option<&str>) -> u64 {
    let names = [vm, vdisk].map(Option::unwrap_or_default);
    let bytes = names.iter().flat_map(|name| name.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    hash.max(1)
}

/// The description of a request in flight. It does not move while calls refer to it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct RequestMark([AtomicU64; 8]);

impl RequestMark {
    /// Describes a request from now on.
    pub fn set(&self, number: u64, disk_key: u64, received_ns: u64) {
        let words = [MAGIC, self.user_data(), number, disk_key, received_ns];
        for (word, value) in self.0.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Its address: the `user_data` of the request's calls.
    pub fn user_data(&self) -> u64 {
        std::ptr::from_ref(self).expose_provenance() as u64
    }
}

const _: () = assert!(size_of::<RequestMark>() == 64, "struct request_mark");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_their_absence_are_different_disks() {
        let pairs = [
            (None, None),
            (Some("web"), None),
            (None, Some("web")),
            (Some("web"), Some("/dev/vda")),
            (Some("web/dev/vda"), None),
            (Some("web"), Some("/dev/vdb")),
        ];
        let keys: std::collections::HashSet<u64> = pairs
            .iter()
            .map(|(vm, vdisk)| disk_key(*vm, *vdisk))
            .collect();
        assert_eq!(keys.len(), pairs.len());
        assert!(!keys.contains(&0));
    }

    #[test]
    fn a_mark_has_its_own_address() {
        let marks: Vec<RequestMark> = (0..3).map(|_| RequestMark::default()).collect();
        for (at, mark) in marks.iter().enumerate() {
            mark.set(request_number(2, at as u64 + 1), 7, 8);
            assert_eq!(mark.user_data() % 64, 0);
            let words = mark.0.each_ref().map(|word| word.load(Ordering::Relaxed));
            let number = 2 << 48 | (at as u64 + 1);
            assert_eq!(words, [MAGIC, mark.user_data(), number, 7, 8, 0, 0, 0]);
        }
        let apart = marks[1].user_data() - marks[0].user_data();
        assert_eq!(apart, 64);
    }
}
