//! [`OrderedCounts`]: distinct values in order, each with its count.
//!
//! The values lie in sorted chunks of at most [`CHUNK_MAX`]: inserting or removing takes two binary
//! searches and a short move within the first-level cache. A value takes its own size, 8 bytes for
//! the count, and half of that again as slack. A balanced tree needs as many steps, each to another
//! cache line.

/// The largest number of entries of a chunk; a full chunk is split.
const CHUNK_MAX: usize = 128;

/// A chunk smaller than this is merged with a neighbour that has capacity.
const CHUNK_MIN: usize = CHUNK_MAX / 4;

/// An ordered multiset of values. Counts may be negative temporarily, when a retraction arrives
/// before its insertion.
#[derive(Clone, Debug)]
pub struct OrderedCounts<K> {
    /// The first value of each chunk, stored separately so that finding a chunk touches few cache
    /// lines.
    firsts: Vec<K>,
    chunks: Vec<Chunk<K>>,
    total: i64,
    bytes: usize,
}

/// A nonempty part of the sorted list.
#[derive(Clone, Debug)]
struct Chunk<K> {
    /// The sum of the counts.
    total: i64,
    keys: Vec<K>,
    /// The count of each key, never 0.
    counts: Vec<i64>,
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
    /// Adds `weight` copies of `key` (removes them if negative) and returns the new count.
    pub fn add(&mut self, key: K, weight: i64) -> i64 {
        if weight == 0 {
            return self.count(key);
        }
        self.total = self.total.wrapping_add(weight);
        let at = self.chunk_of(&key);
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.insert_chunk(0, Chunk::of_one(key, weight));
            return weight;
        };
        let i = chunk.index_of(&key);
        if chunk.keys.get(i) != Some(&key) {
            self.insert(at, i, key, weight);
            return weight;
        }
        chunk.total = chunk.total.wrapping_add(weight);
        chunk.counts[i] = chunk.counts[i].wrapping_add(weight);
        let count = chunk.counts[i];
        if count == 0 {
            self.remove(at, i);
        }
        count
    }

    /// The count of `key`.
    pub fn count(&self, key: K) -> i64 {
        let chunk = self.chunks.get(self.chunk_of(&key));
        let found = chunk.map(|chunk| (chunk, chunk.index_of(&key)));
        found
            .filter(|(chunk, i)| chunk.keys.get(*i) == Some(&key))
            .map_or(0, |(c, i)| c.counts[i])
    }

    /// The sum of all counts.
    pub fn total(&self) -> i64 {
        self.total
    }

    /// The number of distinct values.
    pub fn distinct(&self) -> usize {
        self.chunks.iter().map(|c| c.keys.len()).sum()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The least value with a positive count.
    pub fn first(&self) -> Option<K> {
        self.chunks.iter().find_map(|chunk| chunk.first_present(0))
    }

    /// The greatest value with a positive count.
    pub fn last(&self) -> Option<K> {
        self.chunks.iter().rev().find_map(Chunk::last_present)
    }

    /// The least value at or above `key` with a positive count.
    pub fn first_from(&self, key: K) -> Option<K> {
        let (head, rest) = self.chunks.get(self.chunk_of(&key)..)?.split_first()?;
        let found = head.first_present(head.index_of(&key));
        found.or_else(|| rest.iter().find_map(|chunk| chunk.first_present(0)))
    }

    /// The value at `rank` (0 is the least) in the sorted list of all copies.
    pub fn nth(&self, rank: u64) -> Option<K> {
        let mut left = rank;
        // Entries with a negative count will cancel out; they have no rank.
        for chunk in &self.chunks {
            let total = chunk.total.max(0) as u64;
            if left >= total {
                left -= total;
                continue;
            }
            for (key, count) in chunk.iter() {
                let count = count.max(0) as u64;
                if left < count {
                    return Some(key);
                }
                left -= count;
            }
        }
        None
    }

    /// The one or two middle values in the sorted list of all copies; the same value twice if the
    /// number of copies is odd.
    pub fn middle(&self) -> Option<(K, K)> {
        let total = u64::try_from(self.total).ok()?;
        let low = total.checked_sub(1)? / 2;
        Some((self.nth(low)?, self.nth(total / 2)?))
    }

    /// The values in order with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (K, i64)> + '_ {
        self.chunks.iter().flat_map(Chunk::iter)
    }

    /// Adds the values of `other`.
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

    /// The chunk that contains `key` or should contain it.
    fn chunk_of(&self, key: &K) -> usize {
        self.firsts
            .partition_point(|first| first <= key)
            .saturating_sub(1)
    }

    fn insert(&mut self, at: usize, i: usize, key: K, weight: i64) {
        let is_last = at + 1 == self.chunks.len();
        let chunk = &mut self.chunks[at];
        let before = chunk.bytes();
        if chunk.keys.len() < CHUNK_MAX {
            chunk.insert(i, key, weight);
            self.bytes = self.bytes + chunk.bytes() - before;
            self.firsts[at] = chunk.keys[0];
        } else if is_last && i == CHUNK_MAX {
            // Ascending values (sequence numbers, times) fill chunk after chunk instead of leaving
            // half-full chunks behind.
            self.insert_chunk(at + 1, Chunk::of_one(key, weight));
        } else {
            let upper = chunk.split();
            self.bytes = self.bytes + chunk.bytes() - before;
            self.insert_chunk(at + 1, upper);
            match i.checked_sub(CHUNK_MAX / 2) {
                Some(i) if i > 0 => self.insert(at + 1, i, key, weight),
                _ => self.insert(at, i, key, weight),
            }
        }
    }

    fn insert_chunk(&mut self, at: usize, chunk: Chunk<K>) {
        self.bytes += chunk.bytes();
        self.firsts.insert(at, chunk.keys[0]);
        self.chunks.insert(at, chunk);
    }

    fn remove(&mut self, at: usize, i: usize) {
        let chunk = &mut self.chunks[at];
        chunk.remove(i);
        if let Some(&first) = chunk.keys.first() {
            self.firsts[at] = first;
        }
        let len = chunk.keys.len();
        if len == 0 {
            self.remove_chunk(at);
        } else if len < CHUNK_MIN {
            let room =
                |c: Option<&Chunk<K>>| c.is_some_and(|c| c.keys.len() + len <= CHUNK_MAX / 2);
            if room(self.chunks.get(at + 1)) {
                self.join(at);
            } else if at > 0 && room(self.chunks.get(at - 1)) {
                self.join(at - 1);
            }
        }
    }

    /// Moves the values of the chunk after `at` into it.
    fn join(&mut self, at: usize) {
        let upper = self.remove_chunk(at + 1);
        let chunk = &mut self.chunks[at];
        let before = chunk.bytes();
        chunk.append(upper);
        self.bytes = self.bytes + chunk.bytes() - before;
    }

    fn remove_chunk(&mut self, at: usize) -> Chunk<K> {
        self.firsts.remove(at);
        let chunk = self.chunks.remove(at);
        self.bytes -= chunk.bytes();
        if self.chunks.is_empty() {
            (self.firsts, self.chunks) = (Vec::new(), Vec::new());
        }
        chunk
    }
}

impl<K: Copy + Ord> Chunk<K> {
    fn of_one(key: K, count: i64) -> Chunk<K> {
        Chunk {
            total: count,
            keys: vec![key],
            counts: vec![count],
        }
    }

    /// The index of `key`, or where to insert it.
    fn index_of(&self, key: &K) -> usize {
        self.keys.partition_point(|k| k < key)
    }

    fn iter(&self) -> impl Iterator<Item = (K, i64)> + '_ {
        self.keys.iter().copied().zip(self.counts.iter().copied())
    }

    fn first_present(&self, from: usize) -> Option<K> {
        (from..self.keys.len())
            .find(|&i| self.counts[i] > 0)
            .map(|i| self.keys[i])
    }

    fn last_present(&self) -> Option<K> {
        (0..self.keys.len())
            .rev()
            .find(|&i| self.counts[i] > 0)
            .map(|i| self.keys[i])
    }

    fn insert(&mut self, i: usize, key: K, count: i64) {
        self.total = self.total.wrapping_add(count);
        self.counts.insert(i, count);
        self.keys.insert(i, key);
    }

    /// Removes a value whose count is 0 and which is no longer part of the total.
    fn remove(&mut self, i: usize) {
        self.keys.remove(i);
        self.counts.remove(i);
    }

    /// Keeps the lower half and returns the upper.
    fn split(&mut self) -> Chunk<K> {
        let keys = self.keys.split_off(CHUNK_MAX / 2);
        let counts = self.counts.split_off(CHUNK_MAX / 2);
        let total = counts
            .iter()
            .fold(0i64, |sum, count| sum.wrapping_add(*count));
        self.total = self.total.wrapping_sub(total);
        Chunk {
            total,
            keys,
            counts,
        }
    }

    fn append(&mut self, upper: Chunk<K>) {
        self.total = self.total.wrapping_add(upper.total);
        self.keys.extend(upper.keys);
        self.counts.extend(upper.counts);
    }

    fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<K>() + self.counts.capacity() * size_of::<i64>()
    }
}
