//! The tables that this side writes for the kernel side, or cleans up: devices and cgroups,
//! requests in flight, counters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{self, SIBLINGS, WAYS};
use super::programs::Sizes;
use crate::shared::Shared;

/// Words of `struct known`.
const KNOWN_WORDS: usize = layout::KNOWN_BYTES / 8;

/// The position of each key in a table of `struct known`.
#[derive(Debug, Default)]
pub struct Known {
    slots: HashMap<u64, (usize, usize)>,
}

/// The hash of `tap.bpf.c`.
fn hash(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
}

impl Known {
    /// Inserts or updates a key in the kernel side's table. A key for which there is no room is
    /// unknown to the kernel side and passes every test; false is returned.
    pub fn insert(&mut self, table: &Shared, key: u64, index: u32, marks: u32) -> bool {
        let words = table.words();
        let mask = words.len() / KNOWN_WORDS - 1;
        let bucket = hash(key) & mask;
        let first = bucket * KNOWN_WORDS;
        let free = |way: &usize| words[first + way].load(Ordering::Relaxed) == 0;
        let slot = match self.slots.get(&key) {
            Some(slot) => Some(*slot),
            None => (0..SIBLINGS).find(free).map(|way| (first, way)),
        };
        let Some((first, way)) = slot else {
            return false;
        };
        put_half(words, first + SIBLINGS, way, index);
        put_half(words, first + SIBLINGS + SIBLINGS / 2, way, marks);
        words[first + way].store(key, Ordering::Release);
        self.slots.insert(key, (first, way));
        true
    }
}

impl Known {
    /// Removes a key; it is unknown to the kernel side from now on.
    pub fn forget(&mut self, table: &Shared, key: u64) {
        if let Some((first, way)) = self.slots.remove(&key) {
            table.words()[first + way].store(0, Ordering::Release);
        }
    }
}

/// Writes 32-bit value number `at` of those that start at word `first`. Only this side writes these
/// words.
fn put_half(words: &[AtomicU64], first: usize, at: usize, value: u32) {
    let word = &words[first + at / 2];
    let shift = 32 * (at % 2);
    let kept = word.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
    word.store(kept | u64::from(value) << shift, Ordering::Relaxed);
}

/// A counter of a device's row, over all processors.
pub fn sum(counters: &Shared, sizes: &Sizes, row: u32, word: usize) -> i64 {
    let words = counters.words();
    let at = |cpu: u32| {
        let row = (cpu * sizes.device_rows + row) as usize;
        words[row * layout::COUNTS_BYTES / 8 + word].load(Ordering::Relaxed)
    };
    (0..sizes.processors).map(at).sum::<u64>() as i64
}

/// A request whose entry was removed.
#[derive(Clone, Copy, Debug)]
pub struct Removed {
    /// The number + 1 of the subject whose histograms count it; 0 is none.
    pub subject: usize,
    /// The row of its disk if it is counted in the requests in flight there.
    pub in_flight_of: Option<usize>,
}

/// Frees the entries of requests that started before `before_ns`; returns their number. `forget` is
/// called with each.
pub fn sweep(buckets: &Shared, entries: &Shared, before_ns: u64, forget: impl Fn(Removed)) -> i64 {
    const ENTRY_WORDS: usize = layout::ENTRY_BYTES / 8;
    let mut freed = 0;
    for (slot, request) in buckets.words().iter().enumerate() {
        let name = request.load(Ordering::Acquire);
        if name == 0 {
            continue;
        }
        let entry = &entries.words()[slot * ENTRY_WORDS..][..ENTRY_WORDS];
        let times = [
            layout::entry::INSERT,
            layout::entry::ISSUE,
            layout::entry::ODD,
        ];
        let last = times.map(|word| entry[word].load(Ordering::Relaxed));
        let last = last.into_iter().max().expect("an entry has three times");
        let numbers = entry[layout::entry::SUBJECT].load(Ordering::Relaxed);
        let in_flight = entry[layout::entry::IN_FLIGHT].load(Ordering::Relaxed) as u16;
        let removed = Removed {
            subject: (numbers >> 16 & 0xffff) as usize,
            in_flight_of: (in_flight != 0).then_some((numbers & 0xffff) as usize),
        };
        let old = last != 0 && last < before_ns;
        let freeing = || request.compare_exchange(name, 0, Ordering::AcqRel, Ordering::Relaxed);
        if old && freeing().is_ok() {
            freed += 1;
            forget(removed);
        }
    }
    freed
}

/// The start of the oldest request that has an entry.
pub fn oldest(buckets: &Shared, entries: &Shared) -> Option<u64> {
    const ENTRY_WORDS: usize = layout::ENTRY_BYTES / 8;
    let started = |(slot, request): (usize, &AtomicU64)| {
        // Few have a name; the entries of the others are not read.
        if request.load(Ordering::Acquire) == 0 {
            return None;
        }
        let entry = &entries.words()[slot * ENTRY_WORDS..][..ENTRY_WORDS];
        let times = [layout::entry::INSERT, layout::entry::ISSUE];
        let times = times.map(|word| entry[word].load(Ordering::Relaxed));
        // An entry without a time is being created.
        times.into_iter().filter(|ns| *ns != 0).min()
    };
    buckets.words().iter().enumerate().filter_map(started).min()
}

const _: () = assert!(
    layout::BUCKET_BYTES == 8 * WAYS,
    "a bucket is its requests' names"
);

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn table(values: usize, value_bytes: usize) -> Shared {
        let fd = memfd_create("weir-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, (values * value_bytes).next_multiple_of(4096) as u64).unwrap();
        Shared::map(fd.as_fd(), value_bytes, values).unwrap()
    }

    #[test]
    fn only_a_request_that_was_counted_in_flight_is_removed_from_its_disk() {
        const WORDS: usize = layout::ENTRY_BYTES / 8;
        let buckets = table(2, WAYS * 8);
        let entries = table(2 * WAYS, layout::ENTRY_BYTES);
        // Request, time of issue, requests in flight, way, time since the previous request.
        let requests = [
            (7, 100, 1, 3, u64::MAX),
            (8, 100, 0xffff, 0, 1 << 32),
            // Its relation to others is unknown.
            (9, 100, 0, 5, u64::MAX),
            (10, 900, 2, 1, 5),
        ];
        for (at, (request, issued, in_flight, way, since)) in requests.into_iter().enumerate() {
            let slot = 3 * at;
            buckets.words()[slot].store(request, Ordering::Relaxed);
            let entry = &entries.words()[slot * WORDS..][..WORDS];
            entry[layout::entry::ISSUE].store(issued, Ordering::Relaxed);
            entry[layout::entry::SUBJECT].store(4 | 6 << 16 | 1 << 32, Ordering::Relaxed);
            // `struct entry`: in_flight, way, a spare byte, pid.
            let word = in_flight | way << 16 | 4711 << 32;
            entry[layout::entry::IN_FLIGHT].store(word, Ordering::Relaxed);
            entry[WORDS - 1].store(since, Ordering::Relaxed);
        }
        let removed = RefCell::new(Vec::new());
        let forget = |one: Removed| {
            removed.borrow_mut().push((one.subject, one.in_flight_of));
        };
        assert_eq!(sweep(&buckets, &entries, 500, forget), 3);
        assert_eq!(removed.take(), [(6, Some(4)), (6, Some(4)), (6, None)]);
        let left = buckets.words().iter();
        let left = left.map(|name| name.load(Ordering::Relaxed));
        assert_eq!(left.filter(|name| *name != 0).collect::<Vec<u64>>(), [10]);
    }
}
