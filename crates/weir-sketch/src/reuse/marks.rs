//! [`Marks`]: a set of timestamps that counts the members after a given one.
//!
//! One bit per timestamp, and over blocks of 512 bits a Fenwick tree of counts (Fenwick 1994, "A
//! new data structure for cumulative frequency tables"): a query takes a few tree nodes and one
//! cache line.

/// 64-bit words in a block.
const WORDS: usize = 8;
const BITS: usize = WORDS * 64;

/// The marked timestamps below the capacity.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    bits: Vec<[u64; WORDS]>,
    /// `tree[i]` is the count of the blocks that node `i + 1` of the Fenwick tree covers.
    tree: Vec<u32>,
    marked: u32,
}

impl Marks {
    /// An empty set with room for at least `capacity` timestamps.
    pub(super) fn new(capacity: usize) -> Marks {
        let blocks = capacity.div_ceil(BITS).max(1);
        Marks {
            bits: vec![[0; WORDS]; blocks],
            tree: vec![0; blocks],
            marked: 0,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.bits.len() * BITS
    }

    pub(super) fn marked(&self) -> u32 {
        self.marked
    }

    /// Bytes on the heap of a set with room for `capacity` timestamps.
    pub(super) fn bytes_for(capacity: usize) -> usize {
        capacity.div_ceil(BITS).max(1) * (WORDS * 8 + 4)
    }

    pub(super) fn set(&mut self, time: u32) {
        let (block, word, bit) = position(time);
        debug_assert_eq!(self.bits[block][word] & bit, 0, "a time is marked once");
        self.bits[block][word] |= bit;
        self.marked += 1;
        self.change(block, 1);
    }

    pub(super) fn clear(&mut self, time: u32) {
        let (block, word, bit) = position(time);
        debug_assert_ne!(
            self.bits[block][word] & bit,
            0,
            "only marked ones are cleared"
        );
        self.bits[block][word] &= !bit;
        self.marked -= 1;
        self.change(block, u32::MAX);
    }

    /// The number of marked timestamps before `time`.
    pub(super) fn before(&self, time: u32) -> u32 {
        let (block, word, bit) = position(time);
        let words = &self.bits[block];
        let mut count = (words[word] & (bit - 1)).count_ones();
        count += words[..word].iter().map(|w| w.count_ones()).sum::<u32>();
        let mut node = block;
        while node > 0 {
            count += self.tree[node - 1];
            node &= node - 1;
        }
        count
    }

    /// Marks exactly the timestamps from 1 to `count`.
    pub(super) fn set_first(&mut self, count: u32) {
        self.marked = count;
        self.tree.fill(0);
        for block in 0..self.bits.len() {
            for word in 0..WORDS {
                let from = (block * BITS + word * 64) as u32;
                self.bits[block][word] = below(count + 1, from) & !below(1, from);
            }
            let here = self.bits[block].iter().map(|w| w.count_ones()).sum();
            self.change(block, here);
        }
    }

    /// Adds to the count of a block, modulo 2^32.
    fn change(&mut self, block: usize, by: u32) {
        let mut node = block + 1;
        while let Some(count) = self.tree.get_mut(node - 1) {
            *count = count.wrapping_add(by);
            node += node & node.wrapping_neg();
        }
    }
}

/// A mask of those of the 64 timestamps from `from` that are before `time`.
fn below(time: u32, from: u32) -> u64 {
    match time.saturating_sub(from) {
        count @ 0..64 => (1 << count) - 1,
        _ => u64::MAX,
    }
}

fn position(time: u32) -> (usize, usize, u64) {
    let time = time as usize;
    (time / BITS, time % BITS / 64, 1 << (time % 64))
}
