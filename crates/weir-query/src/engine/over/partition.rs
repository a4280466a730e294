//! [`Partition`]: the rows of a partition in order.

use std::collections::BTreeMap;
use std::ops::Range;

use weir_model::Column;

use crate::synopsis::gather::column_bytes;

#[derive(Default)]
pub(super) struct Partition {
    pub entries: Entries,
    /// All rows with what was emitted, if that was computed for the whole partition last.
    pub shown: Option<Shown>,
}

/// The rows of a partition by sort key.
pub(super) type Entries = BTreeMap<Vec<u8>, Entry>;

/// A row of a partition.
pub(super) struct Entry {
    pub slot: u32,
    pub count: i64,
    /// How many bytes of the sort key are equal among peers.
    pub order_len: usize,
}

impl Entry {
    /// How many rows it is.
    pub fn copies(&self) -> usize {
        usize::try_from(self.count).unwrap_or(0)
    }
}

/// Rows of a partition with their results.
#[derive(Default)]
pub(super) struct Shown {
    /// The rows in order, copies as often as there are.
    pub slots: Vec<u32>,
    /// The results of each call.
    pub results: Vec<Column>,
}

impl Shown {
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * 4 + self.results.iter().map(column_bytes).sum::<usize>()
    }

    /// The copies of each row: its slot, the position of the first one, and their number.
    pub fn runs(&self) -> impl Iterator<Item = (u32, usize, usize)> + '_ {
        let mut start = 0;
        self.slots.chunk_by(|a, b| a == b).map(move |copies| {
            let first = start;
            start += copies.len();
            (copies[0], first, copies.len())
        })
    }
}

/// Consecutive rows of a partition.
#[derive(Default)]
pub(super) struct Stretch {
    /// The rows in order, copies as often as there are.
    pub slots: Vec<u32>,
    /// The position of the first peer of each row in the stretch.
    pub first_peers: Vec<usize>,
    /// The rows whose results are wanted. The others are there because these depend on them.
    pub wanted: Range<usize>,
}

impl Stretch {
    /// Consecutive entries, of which those with a wanted sort key follow each other.
    pub fn of<'a>(
        entries: impl Iterator<Item = (&'a Vec<u8>, &'a Entry)>,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Stretch {
        let mut stretch = Stretch::default();
        let mut peers_of: Option<&[u8]> = None;
        for (key, entry) in entries {
            let order = &key[..entry.order_len];
            let start = stretch.slots.len();
            let first_peer = match stretch.first_peers.last() {
                Some(&first) if peers_of == Some(order) => first,
                _ => start,
            };
            let end = start + entry.copies();
            stretch.slots.resize(end, entry.slot);
            stretch.first_peers.resize(end, first_peer);
            peers_of = Some(order);
            if is_wanted(key) {
                let first = match stretch.wanted.is_empty() {
                    true => start,
                    false => stretch.wanted.start,
                };
                stretch.wanted = first..end;
            }
        }
        stretch
    }
}
