//! The rows of one side of a join, each in the chain of its key.

use std::collections::VecDeque;

use weir_model::{Batch, Column, Schema, Type};

use crate::synopsis::keys::{KeyPacker, Keys};
use crate::synopsis::slots::Slots;
use crate::synopsis::table::KeyTable;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// Steps along a chain after which rows are looked up in an index instead.
const LONG_SEARCH: usize = 64;

/// The rows of a key on one side, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
}

impl Default for Chain {
    fn default() -> Chain {
        Chain {
            first: NONE,
            last: NONE,
        }
    }
}

impl Chain {
    /// As one 64-bit word, to store beside the key.
    pub(super) fn word(self) -> u64 {
        u64::from(self.first) | u64::from(self.last) << 32
    }

    /// The inverse of [`Chain::word`].
    pub(super) fn from_word(word: u64) -> Chain {
        Chain {
            first: word as u32,
            last: (word >> 32) as u32,
        }
    }

    /// True without rows.
    pub(super) fn is_empty(self) -> bool {
        self.first == NONE
    }
}

/// The rows of one side.
pub(super) struct Side {
    /// The values of the columns that are kept.
    pub slots: Slots,
    /// The columns that are kept, and whether each is part of the result.
    kept: Vec<(usize, bool)>,
    links: Vec<Link>,
    /// By slot: how many rows of the other side the row is paired with, where that matters.
    partners: Vec<i64>,
    types: Vec<Type>,
    /// How long rows stay, where the join keeps the window of this side itself.
    size: Option<i64>,
    /// The slots of such rows in the order of arrival, and when they expire.
    queue: VecDeque<u32>,
    leaves: VecDeque<i64>,
    index: Option<Index>,
    index_wanted: bool,
}

/// What is stored of a row beside its values.
#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
    /// The number of its key.
    number: u32,
    /// The multiplicity of the row; 0 in a free slot.
    weight: i64,
}

const UNLINKED: Link = Link {
    next: NONE,
    prev: NONE,
    number: NONE,
    weight: 0,
};

/// Rows by all their values, for sides where many rows share a key and are not retracted in the
/// order of insertion.
struct Index {
    packer: KeyPacker,
    table: KeyTable,
    /// The latest of equal rows, by the number in the table.
    latest: Vec<u32>,
    /// The previous equal row, by slot.
    earlier: Vec<u32>,
}

impl Side {
    /// No rows, of this schema. With a `size` they are those of a stream, and each expires after
    /// that time. `shown` marks the columns that the result needs; without a size all columns are
    /// kept, since rows are found by their values.
    pub(super) fn new(schema: &Schema, shown: &[bool], size: Option<i64>) -> Side {
        let kept = shown.iter().copied().enumerate();
        let kept: Vec<(usize, bool)> = kept.filter(|&(_, shown)| shown || size.is_none()).collect();
        Side {
            slots: Slots::of_types(kept.iter().map(|&(i, _)| schema[i].ty)),
            kept,
            links: Vec::new(),
            partners: Vec::new(),
            types: schema.fields.iter().map(|f| f.ty).collect(),
            size,
            queue: VecDeque::new(),
            leaves: VecDeque::new(),
            index: None,
            index_wanted: false,
        }
    }

    /// Stores rows, in no chain yet.
    pub(super) fn store(&mut self, columns: &[Column], rows: usize) -> Vec<u32> {
        let slots = self.slots.reserve(rows);
        self.slots
            .write(&slots, self.kept.iter().map(|&(i, _)| &columns[i]));
        self.links.resize(self.slots.len(), UNLINKED);
        slots
    }

    /// The columns of the rows in these slots; those that the result does not need are NULL.
    pub(super) fn gather(&self, slots: &[u32]) -> Vec<Column> {
        let mut columns = vec![Column::Nulls(slots.len()); self.types.len()];
        for (column_index, &(i, shown)) in self.kept.iter().enumerate() {
            if shown {
                columns[i] = self.slots.gather_column(column_index, slots);
            }
        }
        columns
    }

    /// How many columns a row has.
    pub(super) fn width(&self) -> usize {
        self.types.len()
    }

    /// Creates the index if searches have become long. Returns the keys of a batch in it.
    pub(super) fn row_keys(&mut self, batch: &Batch) -> Option<Keys> {
        if std::mem::take(&mut self.index_wanted) && self.index.is_none() {
            let mut index = Index {
                packer: KeyPacker::new(&self.types),
                table: KeyTable::new(0),
                latest: Vec::new(),
                earlier: Vec::new(),
            };
            index.table = KeyTable::new(index.packer.width());
            let occupied: Vec<u32> = self.occupied().collect();
            let keys = index
                .packer
                .pack(&self.slots.gather(&occupied), occupied.len());
            for (row, &slot) in occupied.iter().enumerate() {
                index.add(&keys, row, slot);
            }
            self.index = Some(index);
        }
        let index = self.index.as_mut()?;
        Some(index.packer.pack(&batch.columns, batch.len()))
    }

    /// Records the key's number and the multiplicity of an inserted row.
    pub(super) fn occupy(&mut self, slot: u32, number: u32, weight: i64) {
        self.links[slot as usize] = Link {
            weight,
            number,
            ..UNLINKED
        };
    }

    /// Records when a row that arrived at `ts` expires, where the side has a window; returns false
    /// where it has none.
    pub(super) fn schedule_expiry(&mut self, slot: u32, ts: i64) -> bool {
        let Some(size) = self.size else { return false };
        // A row that would expire after the last instant never does.
        if let Some(leaves) = ts.checked_add(size) {
            self.queue.push_back(slot);
            self.leaves.push_back(leaves);
        }
        true
    }

    /// When the oldest row expires, where the side has a window.
    pub(super) fn next_expiry(&self) -> Option<i64> {
        self.leaves.front().copied()
    }

    /// When row `index` of the queue expires.
    pub(super) fn leaves(&self, index: usize) -> Option<i64> {
        self.leaves.get(index).copied()
    }

    /// Dequeues that row; returns its slot and the number of its key.
    pub(super) fn dequeue_oldest(&mut self) -> (u32, u32) {
        self.leaves.pop_front();
        let slot = self
            .queue
            .pop_front()
            .expect("an expiring row was inserted before");
        (slot, self.links[slot as usize].number)
    }

    /// Reads what removing at most `rows` rows that expire by `upto` will read, all at once;
    /// returns the numbers of their keys.
    pub(super) fn prefetch_expiring(&self, rows: usize, upto: i64) -> Vec<u32> {
        let leaving = self
            .leaves
            .iter()
            .take(rows)
            .take_while(|&&ts| ts <= upto)
            .count();
        let number = |&slot: &u32| self.links[slot as usize].number;
        self.queue
            .iter()
            .take(leaving)
            .map(number)
            .filter(|&n| n != NONE)
            .collect()
    }

    /// Reads the start of these chains.
    pub(super) fn prefetch_chains(&self, chains: impl Iterator<Item = Chain>) {
        let next = |chain: Chain| self.links.get(chain.first as usize).map_or(0, |l| l.next);
        std::hint::black_box(chains.map(next).fold(0, |a, b| a ^ b));
    }

    /// Appends a row to a chain.
    pub(super) fn append(&mut self, chain: &mut Chain, slot: u32) {
        self.links[slot as usize].prev = chain.last;
        match chain.last {
            NONE => chain.first = slot,
            last => self.links[last as usize].next = slot,
        }
        chain.last = slot;
    }

    /// Adds a row to the index, if there is one.
    pub(super) fn index_row(&mut self, keys: Option<&Keys>, row: usize, slot: u32) {
        if let (Some(index), Some(keys)) = (&mut self.index, keys) {
            index.add(keys, row, slot);
        }
    }

    /// The slot of a row in the chain that is equal to row `row` of the columns. It must exist.
    pub(super) fn find(
        &mut self,
        chain: Chain,
        keys: Option<&Keys>,
        columns: &[Column],
        row: usize,
    ) -> u32 {
        if chain.first == chain.last {
            return chain.first;
        }
        if let (Some(index), Some(keys)) = (&self.index, keys) {
            let number = index
                .table
                .find(keys, row)
                .expect("a retracted row was inserted before");
            return index.latest[number as usize];
        }
        let mut slot = chain.first;
        let mut steps = 0;
        while !self.slots.equals(slot, columns, row) {
            slot = self.links[slot as usize].next;
            steps += 1;
        }
        self.index_wanted |= steps > LONG_SEARCH;
        slot
    }

    /// Decrements the multiplicity of a row by `times`. Returns true when none is left; the slot is
    /// then free, but still holds its values.
    pub(super) fn decrement(&mut self, slot: u32, times: i64) -> bool {
        let weight = &mut self.links[slot as usize].weight;
        *weight -= times;
        let removed = *weight == 0;
        if removed {
            self.slots.retire(slot);
        }
        removed
    }

    /// Removes a row from a chain.
    pub(super) fn unlink(&mut self, chain: &mut Chain, slot: u32) {
        let link = self.links[slot as usize];
        match link.prev {
            NONE => chain.first = link.next,
            prev => self.links[prev as usize].next = link.next,
        }
        match link.next {
            NONE => chain.last = link.prev,
            next => self.links[next as usize].prev = link.prev,
        }
    }

    /// Removes a row from the index, if there is one.
    pub(super) fn unindex_row(&mut self, keys: Option<&Keys>, row: usize, slot: u32) {
        if let (Some(index), Some(keys)) = (&mut self.index, keys) {
            index.remove(keys, row, slot);
        }
    }

    /// The slots of a chain with the multiplicity of each row.
    pub(super) fn chain(&self, chain: Chain) -> impl Iterator<Item = (u32, i64)> {
        let mut next = chain.first;
        std::iter::from_fn(move || {
            let slot = next;
            let link = self.links.get(slot as usize)?;
            next = link.next;
            Some((slot, link.weight))
        })
    }

    /// All slots that hold a row.
    pub(super) fn occupied(&self) -> impl Iterator<Item = u32> {
        let occupied = |(slot, link): (usize, &Link)| (link.weight > 0).then_some(slot as u32);
        self.links.iter().enumerate().filter_map(occupied)
    }

    /// The multiplicity of the row in a slot.
    pub(super) fn weight(&self, slot: u32) -> i64 {
        self.links[slot as usize].weight
    }

    /// How many rows of the other side a row is paired with.
    pub(super) fn partners(&mut self, slot: u32) -> &mut i64 {
        if self.partners.len() < self.links.len() {
            self.partners.resize(self.links.len(), 0);
        }
        &mut self.partners[slot as usize]
    }

    /// Approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes()
            + self.links.capacity() * size_of::<Link>()
            + self.partners.capacity() * 8
            + self.queue.capacity() * 4
            + self.leaves.capacity() * 8
            + self.index.as_ref().map_or(0, |i| {
                i.packer.bytes()
                    + i.table.bytes()
                    + (i.latest.capacity() + i.earlier.capacity()) * 4
            })
    }
}

impl Index {
    fn add(&mut self, keys: &Keys, row: usize, slot: u32) {
        let (number, added) = self.table.find_or_add(keys, row);
        if self.latest.len() < self.table.numbers() {
            self.latest.resize(self.table.numbers(), NONE);
        }
        if self.earlier.len() <= slot as usize {
            self.earlier.resize(slot as usize + 1, NONE);
        }
        let latest = &mut self.latest[number as usize];
        self.earlier[slot as usize] = if added { NONE } else { *latest };
        *latest = slot;
    }

    fn remove(&mut self, keys: &Keys, row: usize, slot: u32) {
        let Some(number) = self.table.find(keys, row) else {
            return;
        };
        let mut at = self.latest[number as usize];
        if at == slot {
            self.latest[number as usize] = self.earlier[slot as usize];
            if self.latest[number as usize] == NONE {
                self.table.remove(number);
                self.table.recycle();
            }
            return;
        }
        while self.earlier[at as usize] != slot {
            at = self.earlier[at as usize];
        }
        self.earlier[at as usize] = self.earlier[slot as usize];
    }
}
