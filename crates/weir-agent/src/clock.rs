//! [`AgentClock`]: the agent's clock.

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
}

impl AgentClock {
    /// A clock that starts now.
    pub fn start() -> AgentClock {
        AgentClock {
            epoch_offset_ns: ebpf::epoch_offset_ns(),
        }
    }

    /// The offset to add to the monotonic clock to get [`AgentClock::now`].
    pub fn epoch_offset_ns(&self) -> Nanos {
        self.epoch_offset_ns
    }

    /// The current time; taps use it for the timestamps of events.
    pub fn now(&self) -> Nanos {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec * NANOS_PER_SECOND + now.tv_nsec + self.epoch_offset_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_begins_at_the_hosts_time_and_does_not_go_back() {
        let host_ns = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as Nanos;
        let before = host_ns();
        let clock = AgentClock::start();
        let first = clock.now();
        assert!(
            (first - before).abs() < NANOS_PER_SECOND,
            "{first} {before}"
        );
        assert!(clock.now() >= first);
    }
}
