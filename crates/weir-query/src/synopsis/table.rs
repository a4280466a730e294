//! [`KeyTable`]: a hash table from keys to small numbers, which index the data of each key.

use super::keys::{Keys, hash};

/// Numbers keys from 0; the number of a removed key is used again after [`KeyTable::recycle`].
///
/// Open addressing with linear probing. A cell holds the key's hash and its number plus one; the
/// keys themselves lie in one array by number, each with some words of payload behind it, so that
/// both are fetched at once. Removal shifts later cells back, so there are no tombstones.
#[derive(Debug)]
pub(crate) struct KeyTable {
    /// Words of a key.
    width: usize,
    /// Words of a key and its payload.
    stride: usize,
    cells: Vec<u64>,
    entries: Vec<u64>,
    numbers: usize,
    live: usize,
    free: Vec<u32>,
    retired: Vec<u32>,
}

const CELLS_MIN: usize = 16;

impl KeyTable {
    /// An empty table for keys of `width` words.
    pub(crate) fn new(width: usize) -> KeyTable {
        KeyTable::with_payload(width, 0)
    }

    /// An empty table for keys of `width` words with `payload` words each.
    pub(crate) fn with_payload(width: usize, payload: usize) -> KeyTable {
        KeyTable {
            width,
            stride: width + payload,
            cells: vec![0; CELLS_MIN],
            entries: Vec::new(),
            numbers: 0,
            live: 0,
            free: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// One more than the greatest number in use.
    pub(crate) fn numbers(&self) -> usize {
        self.numbers
    }

    /// The payload of a key; undefined before it is written.
    pub(crate) fn payload(&self, number: u32) -> &[u64] {
        let at = number as usize * self.stride;
        &self.entries[at + self.width..at + self.stride]
    }

    /// As [`KeyTable::payload`], for writing.
    pub(crate) fn payload_mut(&mut self, number: u32) -> &mut [u64] {
        let at = number as usize * self.stride;
        &mut self.entries[at + self.width..at + self.stride]
    }

    fn key(&self, number: u32) -> &[u64] {
        let at = number as usize * self.stride;
        &self.entries[at..at + self.width]
    }

    /// The number of keys.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// The number of row `row`'s key, if it is there.
    pub(crate) fn find(&self, keys: &Keys, row: usize) -> Option<u32> {
        self.probe(keys.row(row), keys.hashes[row]).ok()
    }

    /// The number of row `row`'s key, which is added if it is not there, and whether it was added.
    pub(crate) fn find_or_add(&mut self, keys: &Keys, row: usize) -> (u32, bool) {
        let (key, hash) = (keys.row(row), keys.hashes[row]);
        match self.probe(key, hash) {
            Ok(number) => (number, false),
            Err(at) => (self.add_at(at, key, hash), true),
        }
    }

    /// The number of a key, or the free cell where the search for it ended.
    #[inline]
    fn probe(&self, key: &[u64], hash: u32) -> Result<u32, usize> {
        let mask = self.cells.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let cell = self.cells[at];
            if cell == 0 {
                return Err(at);
            }
            if (cell >> 32) as u32 == hash {
                let number = cell as u32 - 1;
                if self.is_key(number, key) {
                    return Ok(number);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// [`KeyTable::find_or_add`] for every row: the numbers, and the rows whose keys were added.
    pub(crate) fn find_or_add_all(&mut self, keys: &Keys) -> (Vec<u32>, Vec<u32>) {
        match (self.width, self.stride) {
            (1, 1) => self.all::<1>(keys),
            (2, 2) => self.all::<2>(keys),
            (3, 3) => self.all::<3>(keys),
            (4, 4) => self.all::<4>(keys),
            _ => {
                let mut added = Vec::new();
                let number = |row| {
                    let (number, is_new) = self.find_or_add(keys, row);
                    if is_new {
                        added.push(row as u32);
                    }
                    number
                };
                ((0..keys.hashes.len()).map(number).collect(), added)
            }
        }
    }

    /// As [`KeyTable::find_or_add_all`], with the width known to the compiler, so that comparing
    /// keys is a few instructions: 6 ns a row instead of 9 with a hundred keys, 41 instead of 119
    /// with a million (AMD EPYC, `measure_look_ups` below).
    fn all<const WIDTH: usize>(&mut self, keys: &Keys) -> (Vec<u32>, Vec<u32>) {
        let mut added = Vec::new();
        let number = |(row, (key, &hash)): (usize, (&[u64; WIDTH], &u32))| {
            let mask = self.cells.len() - 1;
            let mut at = hash as usize & mask;
            let known = self.entries.as_chunks::<WIDTH>().0;
            loop {
                let cell = self.cells[at];
                let number = (cell as u32).wrapping_sub(1);
                if (cell >> 32) as u32 == hash && known.get(number as usize) == Some(key) {
                    return number;
                }
                if cell == 0 {
                    added.push(row as u32);
                    return self.add_at(at, key, hash);
                }
                at = (at + 1) & mask;
            }
        };
        let rows = keys.words().as_chunks::<WIDTH>().0.iter().zip(&keys.hashes);
        (rows.enumerate().map(number).collect(), added)
    }

    /// Puts a new key into the free cell where the search for it ended.
    #[inline(never)]
    fn add_at(&mut self, at: usize, key: &[u64], hash: u32) -> u32 {
        let number = self.number(key);
        self.cells[at] = cell_of(hash, number);
        self.live += 1;
        if self.live * 4 > self.cells.len() * 3 {
            self.grow();
        }
        number
    }

    /// Reads the cells where a look-up of these rows starts, so that the processor fetches all of
    /// them at once: 47 ns a row instead of 126 with a million keys, 10 instead of 9 with a hundred
    /// (AMD EPYC, `measure_look_ups` below).
    pub(crate) fn prefetch(&self, keys: &Keys, rows: impl Iterator<Item = usize>) {
        let mask = self.cells.len() - 1;
        let cells = rows.map(|row| self.cells[keys.hashes[row] as usize & mask]);
        std::hint::black_box(cells.fold(0, |a, b| a ^ b));
    }

    /// Reads the cells where removing these keys starts.
    pub(crate) fn prefetch_removal(&self, numbers: impl Iterator<Item = u32>) {
        let mask = self.cells.len() - 1;
        let cells = numbers.map(|number| self.cells[hash(self.key(number)) as usize & mask]);
        std::hint::black_box(cells.fold(0, |a, b| a ^ b));
    }

    fn is_key(&self, number: u32, key: &[u64]) -> bool {
        match (key, self.key(number)) {
            ([], _) => true,
            ([a], [x]) => a == x,
            ([a, b], [x, y]) => a == x && b == y,
            (key, other) => key.iter().zip(other).all(|(a, x)| a == x),
        }
    }

    fn number(&mut self, key: &[u64]) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.numbers += 1;
            self.entries.resize(self.numbers * self.stride, 0);
            self.numbers as u32 - 1
        });
        let at = number as usize * self.stride;
        self.entries[at..at + self.width].copy_from_slice(key);
        number
    }

    fn grow(&mut self) {
        let mask = self.cells.len() * 2 - 1;
        let old = std::mem::replace(&mut self.cells, vec![0; mask + 1]);
        for cell in old.into_iter().filter(|&c| c != 0) {
            let mut at = (cell >> 32) as usize & mask;
            while self.cells[at] != 0 {
                at = (at + 1) & mask;
            }
            self.cells[at] = cell;
        }
    }

    /// Removes the key with this number. The number is not used again before [`KeyTable::recycle`].
    pub(crate) fn remove(&mut self, number: u32) {
        let hash = hash(self.key(number));
        let mask = self.cells.len() - 1;
        let mut at = hash as usize & mask;
        while self.cells[at] != cell_of(hash, number) {
            debug_assert!(self.cells[at] != 0, "a key to be removed is in the table");
            at = (at + 1) & mask;
        }
        // Move back each later cell of the run that can lie at the gap without preceding its home.
        let mut gap = at;
        loop {
            at = (at + 1) & mask;
            let cell = self.cells[at];
            if cell == 0 {
                break;
            }
            let home = (cell >> 32) as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.cells[gap] = cell;
                gap = at;
            }
        }
        self.cells[gap] = 0;
        self.live -= 1;
        self.retired.push(number);
    }

    /// Makes the numbers of removed keys available again.
    pub(crate) fn recycle(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// Approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        (self.cells.capacity() + self.entries.capacity()) * 8
            + (self.free.capacity() + self.retired.capacity()) * 4
    }
}

fn cell_of(hash: u32, number: u32) -> u64 {
    u64::from(hash) << 32 | (u64::from(number) + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Instant;

    use weir_model::{Column, Type, Value};

    use super::super::keys::{KeyPacker, Keys};
    use super::KeyTable;

    /// `rows` random keys of `distinct` ones.
    fn keys(rows: usize, distinct: i64, seed: u64) -> Keys {
        let mut random = fastrand::Rng::with_seed(seed);
        let column = Column::ints(
            (0..rows)
                .map(|_| random.i64(0..distinct))
                .collect::<Vec<_>>(),
        );
        KeyPacker::new(&[Type::Int]).pack(&[column], rows)
    }

    /// The time for each row of `batch`, in ns: the least of some rounds.
    fn measured(batch: &Keys, mut run: impl FnMut() -> u64) -> f64 {
        let round = |_| {
            let begin = Instant::now();
            std::hint::black_box(run());
            begin.elapsed().as_nanos() as f64 / batch.hashes.len() as f64
        };
        (0..12).map(round).fold(f64::INFINITY, f64::min)
    }

    /// `cargo test --release --workspace --lib measure_look_ups -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn measure_look_ups() {
        const BLOCK: usize = 128;
        for distinct in [100, 1_000_000] {
            let (mut table, batch) = (KeyTable::new(1), keys(1 << 16, distinct, 9));
            table.find_or_add_all(&keys(2_000_000, distinct, 1));
            let rows = 0..batch.hashes.len();
            let known = measured(&batch, || table.find_or_add_all(&batch).0.len() as u64);
            let generic = measured(&batch, || {
                let numbers = rows.clone().map(|row| table.find_or_add(&batch, row).0);
                numbers.collect::<Vec<_>>().len() as u64
            });
            let sum = |rows: std::ops::Range<usize>| {
                let found = rows.map(|row| table.find(&batch, row).map_or(0, u64::from));
                found.sum::<u64>()
            };
            let plain = measured(&batch, || sum(rows.clone()));
            let prefetched = measured(&batch, || {
                let blocks = rows.clone().step_by(BLOCK);
                let block = |first: usize| {
                    table.prefetch(&batch, first..first + BLOCK);
                    sum(first..first + BLOCK)
                };
                blocks.map(block).sum()
            });
            println!(
                "{distinct} keys: width known {known:.1} ns, generic {generic:.1} ns; \
                 prefetched {prefetched:.1} ns, plain {plain:.1} ns"
            );
        }
    }

    /// Adds and removes keys in a pseudo-random order and compares with a standard map.
    #[test]
    fn a_table_finds_added_keys_until_they_are_removed() {
        let mut packer = KeyPacker::new(&[Type::Int, Type::Text]);
        let mut table = KeyTable::new(packer.width());
        let mut model: HashMap<i64, u32> = HashMap::new();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let key = random.i64(0..500);
            let keys = packer.pack(&[Column::ints(vec![key]), Column::texts(["x"])], 1);
            assert_eq!(table.find(&keys, 0), model.get(&key).copied());
            if random.bool() {
                let (number, added) = table.find_or_add(&keys, 0);
                assert_eq!(added, model.insert(key, number).is_none());
            } else if let Some(number) = model.remove(&key) {
                table.remove(number);
                table.recycle();
            }
            assert_eq!(table.len(), model.len());
        }
    }

    #[test]
    fn a_null_key_equals_no_value() {
        let mut packer = KeyPacker::new(&[Type::Int, Type::Text, Type::Bool]);
        let zero = [
            Column::ints(vec![0]),
            Column::texts([""]),
            Column::from_values(Type::Bool, [Value::Bool(false)]),
        ];
        let mut distinct = KeyTable::new(packer.width());
        let keys = packer.pack(&zero, 1);
        distinct.find_or_add(&keys, 0);
        for i in 0..3 {
            let mut columns = zero.to_vec();
            columns[i] = Column::Nulls(1);
            let keys = packer.pack(&columns, 1);
            assert!(distinct.find_or_add(&keys, 0).1, "column {i}");
        }
    }
}
