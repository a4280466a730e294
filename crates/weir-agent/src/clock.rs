//! [`AgentClock`]: the agent's clock. For tests it can have an error, so that hosts on one machine
//! have different clocks.

use rustix::time::{ClockId, clock_gettime};
use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_tap::ebpf;

/// A clock that reads the host's clock once, at the start, and then advances with the monotonic
/// clock. Later changes of the host's clock have no effect. The offset to the monitor's clock is
/// measured.
#[derive(Clone, Copy, Debug)]
pub struct AgentClock {
    /// The offset to add to the monotonic clock.
    epoch_offset_ns: Nanos,
    drill: Drill,
    /// The time at which the drift began.
    begin: Nanos,
}

/// The error of a clock in a test.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drill {
    /// The initial offset; positive if the clock is ahead.
    pub offset_ns: Nanos,
    /// The drift, in parts per million; positive if the clock is fast.
    pub drift_ppm: i64,
}

impl AgentClock {
    /// A clock that starts now.
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

    /// The offset to add to the monotonic clock to get [`AgentClock::steady`].
    pub fn epoch_offset_ns(&self) -> Nanos {
        self.epoch_offset_ns
    }

    /// The current time without the error of a drill; taps use it for the timestamps of events.
    pub fn steady(&self) -> Nanos {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec * NANOS_PER_SECOND + now.tv_nsec + self.epoch_offset_ns
    }

    /// The current time of the clock, with the error of a drill.
    pub fn now(&self) -> Nanos {
        self.shown(self.steady())
    }

    /// The time that the clock shows at the steady time `at`.
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
