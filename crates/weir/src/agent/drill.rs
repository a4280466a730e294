//! [`DrillClock`]: the agent's own time; set wrong on purpose where a test wants hosts whose clocks
//! differ on one machine.

use weir_model::Nanos;

/// A clock that is off by `offset_ns` when it begins, and by more or less as time goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DrillClock {
    /// When the clock began to drift, by a right clock.
    pub begin: Nanos,
    /// How far it is ahead.
    pub offset_ns: Nanos,
    /// How much faster it runs, in parts per million.
    pub drift_ppm: i64,
}

impl DrillClock {
    /// What the agent's clock shows when a right one shows `at`.
    pub fn shown(&self, at: Nanos) -> Nanos {
        let since = i128::from(at) - i128::from(self.begin);
        let drifted = since * i128::from(self.drift_ppm) / 1_000_000;
        let drifted = i64::try_from(drifted).unwrap_or(0);
        at.saturating_add(self.offset_ns).saturating_add(drifted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_clock_is_off_and_drifts() {
        let clock = DrillClock {
            begin: 1_000,
            offset_ns: -50,
            drift_ppm: 200,
        };
        assert_eq!(clock.shown(1_000), 950);
        assert_eq!(clock.shown(1_001_000), 1_001_150);
        assert_eq!(DrillClock::default().shown(7), 7);
    }
}
