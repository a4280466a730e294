//! [`TrialClock`]: wall-clock time that is not stepped, as the timestamps of a tap.
//!
//! A tap converts the kernel's monotonic clock to wall-clock time by the difference at its start.
//! If the clock is stepped later, its timestamps go on without a step. The blocks of a trial are
//! timed in the same way, so that a step moves no request to another block.

use std::time::Instant;

use weir_model::Nanos;
use weir_runtime::run_loop::wall_clock;

/// A change of the difference of both clocks that is a step. A clock that NTP slews has none: it
/// slews both.
pub const STEP_NS_MIN: Nanos = 50_000_000;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct TrialClock {
    origin_ns: Nanos,
    origin: Instant,
}

impl TrialClock {
    /// A clock that shows the present wall-clock time.
    pub fn start() -> TrialClock {
        TrialClock {
            origin_ns: wall_clock(),
            origin: Instant::now(),
        }
    }

    /// The time: that of the wall clock, if it has not been stepped since the start.
    pub fn now(&self) -> Nanos {
        self.at(Instant::now())
    }

    fn at(&self, instant: Instant) -> Nanos {
        let since = instant.duration_since(self.origin).as_nanos();
        self.origin_ns + Nanos::try_from(since).unwrap_or(Nanos::MAX / 2)
    }

    /// By how much the wall clock was stepped since the start; `None` if it was not.
    pub fn step(&self) -> Option<Nanos> {
        self.step_at(wall_clock(), Instant::now())
    }

    fn step_at(&self, wall_ns: Nanos, instant: Instant) -> Option<Nanos> {
        let step = wall_ns - self.at(instant);
        (step.abs() >= STEP_NS_MIN).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_step_is_seen_and_does_not_move_the_clock() {
        let clock = TrialClock::start();
        let later = clock.origin + Duration::from_secs(10);
        let unstepped = clock.origin_ns + 10_000_000_000;
        assert_eq!(clock.at(later), unstepped);
        assert_eq!(clock.step_at(unstepped, later), None);
        assert_eq!(clock.step_at(unstepped + 1_000_000, later), None);
        let hour = 3_600_000_000_000;
        assert_eq!(clock.step_at(unstepped - hour, later), Some(-hour));
        assert_eq!(clock.step_at(unstepped + hour, later), Some(hour));
        assert_eq!(clock.at(later), unstepped);
    }
}
