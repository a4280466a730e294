//! [`Table`]: requests by device, operation and first sector; when it is full the oldest is
//! removed.

use std::collections::{BTreeMap, VecDeque};

use weir_model::{Op, Symbol};

/// Maximum number of requests in a table. More outstanding requests mean that completions were not
/// recorded.
pub const REQUESTS_MAX: usize = 1 << 18;

/// The key of a request in records. Several requests may be outstanding with one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    device: u32,
    op: Op,
    /// First sector.
    pub sector: i64,
}

impl RequestKey {
    /// The key of an operation on a device.
    pub fn new(device: Symbol, op: Op, sector: i64) -> RequestKey {
        RequestKey {
            device: device.id(),
            op,
            sector,
        }
    }

    /// The same operation on the same device at another sector.
    pub fn at(self, sector: i64) -> RequestKey {
        RequestKey { sector, ..self }
    }
}

/// An item that covers sectors from its first sector.
pub trait SectorRange {
    /// The number of sectors.
    fn sectors(&self) -> i64;
}

/// Requests by key, the oldest first for each.
#[derive(Debug)]
pub struct Table<V> {
    max: usize,
    /// In boxes, since the tree moves its values to where they are sorted.
    by_place: BTreeMap<(RequestKey, u64), Box<V>>,
    /// The requests in the order of their age, and some that were removed.
    by_age: VecDeque<(RequestKey, u64)>,
    next: u64,
}

/// Removed requests that the order of age may have for each request of the table, and without any.
const REMOVED_PER_REQUEST: usize = 4;
const REMOVED_MIN: usize = 1024;

impl<V: SectorRange> Table<V> {
    /// An empty table for `max` requests.
    pub fn new(max: usize) -> Table<V> {
        Table {
            max,
            by_place: BTreeMap::new(),
            by_age: VecDeque::new(),
            next: 0,
        }
    }

    /// Adds a request; returns the oldest if the table was full.
    pub fn insert(&mut self, place: RequestKey, value: V) -> Option<V> {
        let oldest = match self.by_place.len() >= self.max {
            true => self.take_oldest(),
            false => None,
        };
        let key = (place, self.next);
        self.by_place.insert(key, Box::new(value));
        self.next += 1;
        if self.by_age.len() > REMOVED_MIN + REMOVED_PER_REQUEST * self.by_place.len() {
            self.by_age.retain(|key| self.by_place.contains_key(key));
        }
        self.by_age.push_back(key);
        oldest
    }

    fn take_oldest(&mut self) -> Option<V> {
        while let Some(key) = self.by_age.pop_front() {
            let oldest = self.take_key(key);
            if oldest.is_some() {
                return oldest;
            }
        }
        None
    }

    /// The request at `place`: the oldest of `sectors` sectors, or else the oldest.
    pub fn find(&self, place: RequestKey, sectors: i64) -> Option<&V> {
        self.key(place, sectors).map(|key| &*self.by_place[&key])
    }

    /// Removes and returns that request.
    pub fn take(&mut self, place: RequestKey, sectors: i64) -> Option<V> {
        let key = self.key(place, sectors)?;
        self.take_key(key)
    }

    /// Removes and returns the request that ends directly before `place`, with its key.
    pub fn take_before(&mut self, place: RequestKey) -> Option<(RequestKey, V)> {
        /// Overlapping requests are rare: the request is the nearest one, or close to it.
        const LOOK_BACK: usize = 16;
        let before = self.by_place.range(..(place, 0)).rev().take(LOOK_BACK);
        let mut same = before.filter(|((p, _), _)| p.at(0) == place.at(0));
        let key = *same
            .find(|((p, _), v)| p.sector + v.sectors() == place.sector)?
            .0;
        Some((key.0, self.take_key(key)?))
    }

    fn take_key(&mut self, key: (RequestKey, u64)) -> Option<V> {
        self.by_place.remove(&key).map(|value| *value)
    }

    fn key(&self, place: RequestKey, sectors: i64) -> Option<(RequestKey, u64)> {
        let here = || self.by_place.range((place, 0)..=(place, u64::MAX));
        let same = here().find(|(_, v)| v.sectors() == sectors);
        same.or_else(|| here().next()).map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SectorRange for i64 {
        fn sectors(&self) -> i64 {
            *self
        }
    }

    fn place(sector: i64) -> RequestKey {
        RequestKey::new(Symbol::new("8,0"), Op::Read, sector)
    }

    #[test]
    fn the_oldest_makes_room_in_a_full_table() {
        let mut table = Table::new(2);
        assert_eq!(table.insert(place(1), 7), None);
        assert_eq!(table.insert(place(0), 8), None);
        assert_eq!(table.insert(place(2), 8), Some(7));
        assert!(table.find(place(1), 8).is_none());
        assert!(table.find(place(0), 8).is_some());
    }

    #[test]
    fn requests_that_were_removed_do_not_accumulate() {
        let mut table = Table::new(2);
        for sector in 0..100_000 {
            table.insert(place(0), sector + 1);
            table.insert(place(1), sector + 1);
            assert_eq!(table.take(place(0), sector + 1), Some(sector + 1));
            assert_eq!(table.take(place(1), 1), Some(sector + 1));
        }
        assert!(table.by_age.len() < 2 * REMOVED_MIN);
        table.insert(place(3), 3);
        table.insert(place(2), 2);
        assert_eq!(table.insert(place(1), 1), Some(3));
    }

    #[test]
    fn two_requests_at_one_sector_are_distinguished_by_size_then_age() {
        let mut table = Table::new(9);
        table.insert(place(0), 8);
        table.insert(place(0), 16);
        assert_eq!(table.take(place(0), 16), Some(16));
        assert_eq!(table.take(place(0), 1), Some(8));
        assert_eq!(table.take(place(0), 1), None);
    }

    #[test]
    fn a_neighbour_is_found_by_its_end() {
        let mut table = Table::new(9);
        table.insert(place(0), 64);
        table.insert(place(32), 8);
        assert_eq!(table.take_before(place(64)), Some((place(0), 64)));
        assert_eq!(table.take_before(place(64)), None);
        assert_eq!(table.take_before(place(40)).unwrap().1, 8);
    }
}
