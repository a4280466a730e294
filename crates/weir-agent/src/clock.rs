//! [`AgentClock`]: the agent's own time; set wrong on purpose where a test wants hosts whose clocks
//! differ on one machine.

use rustix::time::{ClockId, clock_gettime};
use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_tap::ebpf;

/// A clock that is the host's when it starts, and then goes on steadily: when the host's clock is
/// set, it is not. How far it is off the monitor's is measured anyway.
#[derive(Clone, Copy, Debug)]
pub struct AgentClock {
    /// What to add to the monotonic clock.
    epoch_offset_ns: Nanos,
    drill: Drill,
    /// When the clock began to drift.
    begin: Nanos,
}

/// How wrong a clock is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drill {
    /// How far it is ahead when it begins.
    pub offset_ns: Nanos,
    /// How much faster it runs, in parts per million.
    pub drift_ppm: i64,
}

impl AgentClock {
    /// A clock that begins now.
    pub fn start(drill: Drill) -> AgentClock {
        let epoch_offset_ns = ebpf::epoch_offset_ns();
        let mut clock = AgentClock {
            epoch_offset_ns,
            drill,
            begin: 0,
        };
        clock.begin = clock.steady();
        clock
    }

    /// What to add to the monotonic clock to get [`AgentClock::steady`].
    pub fn epoch_offset_ns(&self) -> Nanos {
        self.epoch_offset_ns
    }

    /// The time now, without what a drill makes wrong of it: what taps give events.
    pub fn steady(&self) -> Nanos {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec * NANOS_PER_SECOND + now.tv_nsec + self.epoch_offset_ns
    }

    /// What the clock shows now.
    pub fn now(&self) -> Nanos {
        self.shown(self.steady())
    }

    /// What the clock shows when it steadily is `at`.
    pub fn shown(&self, at: Nanos) -> Nanos {
        let since = i128::from(at) - i128::from(self.begin);
        let drifted = since * i128::from(self.drill.drift_ppm) / 1_000_000;
        let drifted = i64::try_from(drifted).unwrap_or(0);
        at.saturating_add(self.drill.offset_ns)
            .saturating_add(drifted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(offset_ns: Nanos, drift_ppm: i64) -> AgentClock {
        AgentClock {
            epoch_offset_ns: 0,
            drill: Drill {
                offset_ns,
                drift_ppm,
            },
            begin: 1_000,
        }
    }

    #[test]
    fn a_drill_clock_is_off_and_drifts() {
        assert_eq!(clock(-50, 200).shown(1_000), 950);
        assert_eq!(clock(-50, 200).shown(1_001_000), 1_001_150);
        assert_eq!(clock(0, 0).shown(7), 7);
    }

    #[test]
    fn a_clock_goes_on() {
        let clock = AgentClock::start(Drill::default());
        let first = clock.now();
        assert!(clock.now() >= first && first >= clock.begin);
    }
}
