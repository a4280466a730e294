//! [`OrderedCounts`]: distinct values in order, each with how often it is there.
//!
//! The entries lie in sorted chunks of at most [`CHUNK_MAX`], so that taking a value in or out is two binary searches and a short
//! move inside the first-level cache, and 16 bytes hold an integer with its count. A balanced tree does the same in as many steps, but
//! each step goes to another cache line.

/// Most entries of a chunk; a full one is split.
const CHUNK_MAX: usize = 256;

/// A chunk below this is joined with a neighbour that has room.
const CHUNK_MIN: usize = CHUNK_MAX / 4;

/// A multiset of values in order. Counts may be negative for a while, when what goes is told before what came.
#[derive(Clone, Debug)]
pub struct OrderedCounts<K> {
    /// The first value of each chunk, apart, so that finding the chunk stays in few cache lines.
    firsts: Vec<K>,
    chunks: Vec<Chunk<K>>,
    total: i64,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Chunk<K> {
    /// The counts' sum.
    total: i64,
    /// Sorted by value, no count 0, never empty.
    entries: Vec<(K, i64)>,
}

impl<K> Default for OrderedCounts<K> {
    fn default() -> OrderedCounts<K> {
        OrderedCounts {
            firsts: Vec::new(),
            chunks: Vec::new(),
            total: 0,
            bytes: 0,
        }
    }
}

impl<K: Copy + Ord> OrderedCounts<K> {
    /// Takes `weight` copies of `key` in, or out when negative, and returns how many there are now.
    pub fn add(&mut self, key: K, weight: i64) -> i64 {
        if weight == 0 {
            return self.count(key);
        }
        self.total = self.total.wrapping_add(weight);
        let at = self.chunk_of(&key);
        let Some(chunk) = self.chunks.get_mut(at) else {
            return self.insert_chunk(0, vec![(key, weight)]);
        };
        match chunk.entries.binary_search_by(|(k, _)| k.cmp(&key)) {
            Ok(i) => {
                chunk.total = chunk.total.wrapping_add(weight);
                let count = &mut chunk.entries[i].1;
                *count = count.wrapping_add(weight);
                let count = *count;
                if count == 0 {
                    self.remove(at, i);
                }
                count
            }
            Err(i) => {
                self.insert(at, i, key, weight);
                weight
            }
        }
    }

    /// How often `key` is there.
    pub fn count(&self, key: K) -> i64 {
        let found = self.chunks.get(self.chunk_of(&key)).and_then(|chunk| {
            let i = chunk.entries.binary_search_by(|(k, _)| k.cmp(&key)).ok()?;
            Some(chunk.entries[i].1)
        });
        found.unwrap_or(0)
    }

    /// All counts together.
    pub fn total(&self) -> i64 {
        self.total
    }

    /// How many distinct values.
    pub fn distinct(&self) -> usize {
        self.chunks.iter().map(|c| c.entries.len()).sum()
    }

    /// True when nothing is there.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The least value that is there.
    pub fn first(&self) -> Option<K> {
        self.iter()
            .find(|&(_, count)| count > 0)
            .map(|(key, _)| key)
    }

    /// The greatest value that is there.
    pub fn last(&self) -> Option<K> {
        let mut back = self
            .chunks
            .iter()
            .rev()
            .flat_map(|c| c.entries.iter().rev());
        back.find(|&&(_, count)| count > 0).map(|&(key, _)| key)
    }

    /// The least value from `key` on that is there.
    pub fn first_from(&self, key: K) -> Option<K> {
        let at = self.chunk_of(&key);
        let mut chunks = self.chunks.get(at..)?.iter();
        let head = chunks.next()?;
        let from = head.entries.partition_point(|(k, _)| *k < key);
        let mut rest = head.entries[from..]
            .iter()
            .chain(chunks.flat_map(|c| c.entries.iter()));
        rest.find(|&&(_, count)| count > 0).map(|&(key, _)| key)
    }

    /// The value at `rank` (0 is the least) in the sorted list of all copies.
    pub fn nth(&self, rank: u64) -> Option<K> {
        let mut left = rank;
        // Counts below 0 are on their way to be cancelled; they hold no rank.
        for chunk in &self.chunks {
            let total = chunk.total.max(0) as u64;
            if left >= total {
                left -= total;
                continue;
            }
            for &(key, count) in &chunk.entries {
                let count = count.max(0) as u64;
                if left < count {
                    return Some(key);
                }
                left -= count;
            }
        }
        None
    }

    /// The one or two values in the middle of the sorted list of all copies; one twice when their number is odd.
    pub fn middle(&self) -> Option<(K, K)> {
        let total = u64::try_from(self.total).ok()?;
        let low = total.checked_sub(1)? / 2;
        Some((self.nth(low)?, self.nth(total / 2)?))
    }

    /// The values in order with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (K, i64)> + '_ {
        self.chunks.iter().flat_map(|c| c.entries.iter().copied())
    }

    /// Takes everything of `other` in.
    pub fn merge(&mut self, other: &OrderedCounts<K>) {
        for (key, count) in other.iter() {
            self.add(key, count);
        }
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.bytes
            + self.firsts.capacity() * size_of::<K>()
            + self.chunks.capacity() * size_of::<Chunk<K>>()
    }

    /// The chunk where `key` is or belongs.
    fn chunk_of(&self, key: &K) -> usize {
        self.firsts
            .partition_point(|first| first <= key)
            .saturating_sub(1)
    }

    fn insert(&mut self, at: usize, i: usize, key: K, weight: i64) {
        let is_last = at + 1 == self.chunks.len();
        let chunk = &mut self.chunks[at];
        if chunk.entries.len() < CHUNK_MAX {
            let before = chunk.entries.capacity();
            chunk.entries.insert(i, (key, weight));
            self.bytes += (chunk.entries.capacity() - before) * size_of::<(K, i64)>();
            chunk.total = chunk.total.wrapping_add(weight);
            self.firsts[at] = chunk.entries[0].0;
        } else if is_last && i == CHUNK_MAX {
            // Ever greater values (sequence numbers, times) fill chunk after chunk instead of leaving halves behind.
            self.insert_chunk(at + 1, vec![(key, weight)]);
        } else {
            let upper = chunk.entries.split_off(CHUNK_MAX / 2);
            chunk.total = sum(&chunk.entries);
            self.insert_chunk(at + 1, upper);
            match i.checked_sub(CHUNK_MAX / 2) {
                Some(i) if i > 0 => self.insert(at + 1, i, key, weight),
                _ => self.insert(at, i, key, weight),
            }
        }
    }

    fn insert_chunk(&mut self, at: usize, entries: Vec<(K, i64)>) -> i64 {
        let total = sum(&entries);
        self.bytes += entries.capacity() * size_of::<(K, i64)>();
        self.firsts.insert(at, entries[0].0);
        self.chunks.insert(at, Chunk { total, entries });
        total
    }

    fn remove(&mut self, at: usize, i: usize) {
        let chunk = &mut self.chunks[at];
        chunk.entries.remove(i);
        if let Some(&(first, _)) = chunk.entries.first() {
            self.firsts[at] = first;
        }
        let len = chunk.entries.len();
        if len == 0 {
            self.remove_chunk(at);
        } else if len < CHUNK_MIN {
            let room =
                |c: Option<&Chunk<K>>| c.is_some_and(|c| c.entries.len() + len <= CHUNK_MAX / 2);
            if room(self.chunks.get(at + 1)) {
                self.join(at);
            } else if at > 0 && room(self.chunks.get(at - 1)) {
                self.join(at - 1);
            }
        }
    }

    /// Moves the entries of the chunk after `at` into it.
    fn join(&mut self, at: usize) {
        let upper = self.remove_chunk(at + 1);
        let chunk = &mut self.chunks[at];
        let before = chunk.entries.capacity();
        chunk.entries.extend(upper.entries);
        chunk.total = chunk.total.wrapping_add(upper.total);
        self.bytes += (chunk.entries.capacity() - before) * size_of::<(K, i64)>();
    }

    fn remove_chunk(&mut self, at: usize) -> Chunk<K> {
        self.firsts.remove(at);
        let chunk = self.chunks.remove(at);
        self.bytes -= chunk.entries.capacity() * size_of::<(K, i64)>();
        if self.chunks.is_empty() {
            (self.firsts, self.chunks) = (Vec::new(), Vec::new());
        }
        chunk
    }
}

fn sum<K>(entries: &[(K, i64)]) -> i64 {
    entries.iter().fold(0, |sum, e| sum.wrapping_add(e.1))
}
