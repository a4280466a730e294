//! [`Stack`]: keys by the time of their last touch, and how many were touched since.
//!
//! That count is the LRU stack distance (Mattson and others 1970, "Evaluation techniques for
//! storage hierarchies"). As in Bennett and Kruskal (1975, "LRU stack processing"), it is computed
//! by counting the last touches of keys in a tree over time, with a hash table from key to time.
//! Times are renumbered when they run out, so memory is proportional to the keys: 16.5 bytes each.

use super::marks::Marks;

/// Times per key between two renumberings.
const TIMES_PER_KEY: usize = 4;

/// The known keys, by hash. The low 32 bits of a hash select the slot, so they must be well mixed.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    /// Open addressing with linear probing. A slot is in use if its time is not [`FREE`].
    hashes: Vec<u64>,
    times: Vec<u32>,
    marks: Marks,
    /// The time of the last touch.
    now: u32,
    keys_max: usize,
}

/// No key is touched at time 0. Zeroed memory is not backed by pages until it is used.
const FREE: u32 = 0;

impl Stack {
    /// Capacity for `keys_max` keys, fewer than 2^29.
    pub(super) fn new(keys_max: usize) -> Stack {
        assert!((1..1 << 29).contains(&keys_max), "times are 32 bits wide");
        Stack {
            hashes: vec![0; slots(keys_max)],
            times: vec![FREE; slots(keys_max)],
            marks: Marks::new(keys_max * TIMES_PER_KEY),
            now: 0,
            keys_max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.marks.marked() as usize
    }

    pub(super) fn keys_max(&self) -> usize {
        self.keys_max
    }

    pub(super) fn bytes(&self) -> usize {
        let marks = Marks::bytes_for(self.marks.capacity());
        self.hashes.capacity() * 8 + self.times.capacity() * 4 + marks
    }

    /// Bytes on the heap with capacity for `keys_max` keys.
    pub(super) fn bytes_for(keys_max: usize) -> usize {
        slots(keys_max) * 12 + Marks::bytes_for(keys_max * TIMES_PER_KEY)
    }

    /// Touches a key and returns the number of other keys touched since its last touch; `None` for
    /// a new key, for which there must be capacity.
    pub(super) fn touch(&mut self, hash: u64) -> Option<u64> {
        if self.now as usize + 1 == self.marks.capacity() {
            self.renumber();
        }
        self.now += 1;
        let now = self.now;
        let slot = self.find(hash);
        let before = std::mem::replace(&mut self.times[slot], now);
        let distance = if before == FREE {
            assert!(self.len() < self.keys_max, "there is room for a new key");
            self.hashes[slot] = hash;
            None
        } else {
            let older = self.marks.before(before) + 1;
            self.marks.clear(before);
            Some(u64::from(self.marks.marked() + 1 - older))
        };
        self.marks.set(now);
        distance
    }

    /// Whether a key is present.
    pub(super) fn contains(&self, hash: u64) -> bool {
        self.times[self.find(hash)] != FREE
    }

    /// Drops the keys whose hash is above `most`.
    pub(super) fn drop_above(&mut self, most: u64) {
        let slots = self.hashes.len();
        let Some(free) = self.times.iter().position(|&time| time == FREE) else {
            unreachable!("a quarter of the slots is free");
        };
        // Starting from a free slot, no run of used slots wraps around.
        let mut step = 1;
        while step < slots {
            let slot = (free + step) % slots;
            if self.times[slot] != FREE && self.hashes[slot] > most {
                self.marks.clear(self.times[slot]);
                self.free(slot);
            } else {
                step += 1;
            }
        }
    }

    /// A copy with capacity for `keys_max`.
    pub(super) fn grown(&mut self, keys_max: usize) -> Stack {
        self.renumber();
        let mut grown = Stack::new(keys_max);
        for (&hash, &time) in self.hashes.iter().zip(&self.times) {
            if time != FREE {
                let slot = grown.find(hash);
                (grown.hashes[slot], grown.times[slot]) = (hash, time);
            }
        }
        grown.marks.set_first(self.marks.marked());
        grown.now = self.now;
        grown
    }

    /// Renumbers the times of the keys to 1, 2, .. in their order.
    fn renumber(&mut self) {
        for time in &mut self.times {
            if *time != FREE {
                *time = self.marks.before(*time) + 1;
            }
        }
        self.marks.set_first(self.marks.marked());
        self.now = self.marks.marked();
    }

    /// The slot of a key, or the free slot where it belongs.
    fn find(&self, hash: u64) -> usize {
        let mut slot = self.home(hash);
        while self.times[slot] != FREE && self.hashes[slot] != hash {
            slot = self.after(slot);
        }
        slot
    }

    /// Frees a slot and moves up the entries that were displaced past it (Knuth, The Art of
    /// Computer Programming 3, section 6.4, algorithm R).
    fn free(&mut self, slot: usize) {
        let mut hole = slot;
        let mut next = self.after(slot);
        while self.times[next] != FREE {
            let home = self.home(self.hashes[next]);
            let slots = self.hashes.len();
            let from_home = (next + slots - home) % slots;
            let from_hole = (next + slots - hole) % slots;
            if from_home >= from_hole {
                self.hashes[hole] = self.hashes[next];
                self.times[hole] = self.times[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.times[hole] = FREE;
    }

    fn home(&self, hash: u64) -> usize {
        (((hash & 0xffff_ffff) * self.hashes.len() as u64) >> 32) as usize
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.hashes.len() {
            0
        } else {
            slot + 1
        }
    }
}

/// The number of slots for `keys_max` keys; a quarter stays free.
fn slots(keys_max: usize) -> usize {
    keys_max + keys_max.div_ceil(3) + 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hash::mix;

    /// Keys in the order of their last touch, the most recent last.
    #[derive(Default)]
    struct List(Vec<u64>);

    impl List {
        fn touch(&mut self, hash: u64) -> Option<u64> {
            let found = self.0.iter().position(|known| *known == hash);
            let distance = found.map(|at| (self.0.len() - 1 - at) as u64);
            self.0.retain(|known| *known != hash);
            self.0.push(hash);
            distance
        }
    }

    proptest! {
        #[test]
        fn distances_match_a_list(touches in prop::collection::vec((0u64..60, 0u8..40), 0..3_000)) {
            let (mut stack, mut list) = (Stack::new(40), List::default());
            let mut most = u64::MAX;
            for (key, action) in touches {
                if action == 0 {
                    stack = stack.grown(stack.keys_max() + 7);
                }
                if mix(key) > most {
                    continue;
                }
                if !stack.contains(mix(key)) && stack.len() == stack.keys_max() {
                    most = most / 16 * 15;
                    stack.drop_above(most);
                    list.0.retain(|hash| *hash <= most);
                    continue;
                }
                prop_assert_eq!(stack.touch(mix(key)), list.touch(mix(key)));
                prop_assert_eq!(stack.len(), list.0.len());
            }
            prop_assert!(list.0.iter().all(|hash| stack.contains(*hash)));
        }
    }
}
