//! [`Recency`]: places by the time of their last use, as a list within arrays.

use super::PLACES;

/// No place.
const NONE: u8 = PLACES as u8;

/// A list of places, the one that was not used for longest first.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    older: [u8; PLACES],
    newer: [u8; PLACES],
    oldest: u8,
    newest: u8,
    len: usize,
}

impl Default for Recency {
    fn default() -> Recency {
        Recency {
            older: [NONE; PLACES],
            newer: [NONE; PLACES],
            oldest: NONE,
            newest: NONE,
            len: 0,
        }
    }
}

impl Recency {
    /// The number of places.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The place that was not used for longest.
    pub(super) fn oldest(&self) -> Option<usize> {
        (self.oldest != NONE).then_some(self.oldest.into())
    }

    /// Adds a place, as the last one that was used.
    pub(super) fn push(&mut self, place: usize) {
        let older = std::mem::replace(&mut self.newest, place as u8);
        (self.older[place], self.newer[place]) = (older, NONE);
        *self.newer_of(older) = place as u8;
        self.len += 1;
    }

    /// Removes a place of the list.
    pub(super) fn remove(&mut self, place: usize) {
        let (older, newer) = (self.older[place], self.newer[place]);
        *self.newer_of(older) = newer;
        *self.older_of(newer) = older;
        self.len -= 1;
    }

    /// Gives a place of the list another number, which none has.
    pub(super) fn rename(&mut self, from: usize, to: usize) {
        let (older, newer) = (self.older[from], self.newer[from]);
        (self.older[to], self.newer[to]) = (older, newer);
        *self.newer_of(older) = to as u8;
        *self.older_of(newer) = to as u8;
    }

    fn newer_of(&mut self, place: u8) -> &mut u8 {
        match place {
            NONE => &mut self.oldest,
            place => &mut self.newer[usize::from(place)],
        }
    }

    fn older_of(&mut self, place: u8) -> &mut u8 {
        match place {
            NONE => &mut self.newest,
            place => &mut self.older[usize::from(place)],
        }
    }
}
