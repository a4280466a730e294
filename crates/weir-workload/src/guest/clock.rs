//! [`OffsetClock`]: the offset of two clocks, bounded by requests that both sides have seen.
//!
//! Each pair of sightings gives an interval that contains the offset. The clocks drift, so that an
//! interval of another time is widened by as much as their rates may differ. What is left of all
//! intervals is the bound. It holds as long as the rates differ by no more than that and no clock
//! is set. A pair that contradicts the bound begins a new section: one of the clocks was set.

use weir_model::Nanos;

const PPB: i128 = 1_000_000_000;

/// An interval of offsets in nanoseconds, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetBounds {
    /// The smallest.
    pub low: Nanos,
    /// The largest.
    pub high: Nanos,
}

impl OffsetBounds {
    /// The common part.
    pub fn and(self, other: OffsetBounds) -> Option<OffsetBounds> {
        let low = self.low.max(other.low);
        let high = self.high.min(other.high);
        (low <= high).then_some(OffsetBounds { low, high })
    }

    /// The interval with `by` more on both sides.
    pub fn widened(self, by: Nanos) -> OffsetBounds {
        OffsetBounds {
            low: self.low.saturating_sub(by),
            high: self.high.saturating_add(by),
        }
    }

    /// The offset with the smallest possible error.
    pub fn middle(self) -> Nanos {
        ((i128::from(self.low) + i128::from(self.high)) / 2) as Nanos
    }

    /// The largest possible error of [`OffsetBounds::middle`].
    pub fn error(self) -> Nanos {
        let width = i128::from(self.high) - i128::from(self.low);
        i64::try_from((width + 1) / 2).unwrap_or(Nanos::MAX)
    }
}

/// The offset of a virtual disk's clock to that of its guest.
#[derive(Clone, Debug)]
pub struct OffsetClock {
    prior: OffsetBounds,
    drift_ppb: i64,
    /// The bound of the section, and the guest's time at which it holds.
    known: Option<(OffsetBounds, Nanos)>,
    sections: u64,
}

impl OffsetClock {
    /// A clock whose offset is within `prior` at any time, and whose rate differs by `drift_ppb`
    /// parts per billion at most.
    pub fn new(prior: OffsetBounds, drift_ppb: i64) -> OffsetClock {
        OffsetClock {
            prior,
            drift_ppb,
            known: None,
            sections: 0,
        }
    }

    /// Whether a pair has bounded the offset.
    pub fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// The sections so far: one more than the times at which a clock was set.
    pub fn sections(&self) -> u64 {
        self.sections
    }

    /// The widest bound.
    pub fn prior(&self) -> OffsetBounds {
        self.prior
    }

    /// The bound at an instant of the guest.
    pub fn at(&self, guest: Nanos) -> OffsetBounds {
        let Some((bounds, at)) = self.known else {
            return self.prior;
        };
        let aged = bounds.widened(self.drift(at, guest));
        aged.and(self.prior).unwrap_or(self.prior)
    }

    /// Adds a pair that bounds the offset at an instant of the guest. Returns false if it
    /// contradicts the bound, which is then that of the pair alone.
    pub fn add(&mut self, pair: OffsetBounds, guest: Nanos) -> bool {
        let Some((bounds, at)) = self.known else {
            self.begin(pair, guest);
            return true;
        };
        let now = at.max(guest);
        let both = bounds
            .widened(self.drift(at, now))
            .and(pair.widened(self.drift(guest, now)));
        match both {
            Some(both) => self.known = Some((both, now)),
            None => self.begin(pair, guest),
        }
        both.is_some()
    }

    /// Begins a section with this bound.
    pub fn begin(&mut self, bounds: OffsetBounds, guest: Nanos) {
        self.known = Some((bounds, guest));
        self.sections += 1;
    }

    /// How far the clocks may drift apart between two instants.
    pub fn drift(&self, from: Nanos, to: Nanos) -> Nanos {
        let span = (i128::from(to) - i128::from(from)).abs();
        let drift = (span * i128::from(self.drift_ppb) + PPB - 1) / PPB;
        i64::try_from(drift).unwrap_or(Nanos::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(low: Nanos, high: Nanos) -> OffsetBounds {
        OffsetBounds { low, high }
    }

    #[test]
    fn pairs_narrow_the_bound_and_time_widens_it() {
        // 1 us each second.
        let mut clock = OffsetClock::new(bounds(-1_000_000, 1_000_000), 1_000);
        assert_eq!(clock.at(0), bounds(-1_000_000, 1_000_000));
        assert!(clock.add(bounds(100, 900), 0));
        assert!(clock.add(bounds(300, 2_000), 0));
        assert_eq!(clock.at(0), bounds(300, 900));
        assert_eq!(clock.at(2_000_000_000), bounds(-1_700, 2_900));
        assert_eq!(clock.at(-1_000_000_000), bounds(-700, 1_900));
        // An earlier pair that is added later counts as well, widened.
        assert!(clock.add(bounds(800, 5_000), 2_000_000_000));
        assert!(clock.add(bounds(0, 100), 1_000_000_000));
        assert_eq!(clock.at(2_000_000_000), bounds(800, 1_100));
        assert_eq!(clock.sections(), 1);
    }

    #[test]
    fn a_contradiction_begins_a_section() {
        let mut clock = OffsetClock::new(bounds(-1_000_000, 1_000_000), 1_000);
        assert!(clock.add(bounds(0, 100), 0));
        assert!(!clock.add(bounds(50_000, 50_100), 1_000));
        assert_eq!(clock.at(1_000), bounds(50_000, 50_100));
        assert_eq!(clock.sections(), 2);
        assert_eq!(clock.at(1_000).middle(), 50_050);
        assert_eq!(clock.at(1_000).error(), 50);
    }
}
