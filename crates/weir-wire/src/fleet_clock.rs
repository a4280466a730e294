//! [`FleetClock`]: the clock of a monitor, which its agents follow.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use weir_model::Nanos;

use crate::clock::Clock;

/// The clock of a monitor, in nanoseconds since the Unix epoch: this host's, or that of another
/// monitor whose agent this monitor is.
#[derive(Clone, Debug)]
pub struct FleetClock {
    host: fn() -> Nanos,
    /// The conversion to the time of the other monitor, once there is one.
    followed: Arc<OnceLock<Arc<Clock>>>,
    /// The last offset of this host's clock to it, for the time between two monitors.
    offset_ns: Arc<AtomicI64>,
}

impl Default for FleetClock {
    fn default() -> FleetClock {
        FleetClock::of(host_clock)
    }
}

impl FleetClock {
    /// Another clock in place of this host's, for tests of agents whose clocks differ.
    pub fn of(host: fn() -> Nanos) -> FleetClock {
        FleetClock {
            host,
            followed: Arc::default(),
            offset_ns: Arc::default(),
        }
    }

    /// Follows the monitor to whose time `clock` converts, from its first measurement on. A clock
    /// that follows one keeps to it.
    pub fn follow(&self, clock: Arc<Clock>) {
        // Only the first one counts.
        let _ = self.followed.set(clock);
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        let host = (self.host)();
        match self.followed.get().filter(|clock| clock.is_synchronised()) {
            Some(clock) => {
                let now = clock.to_monitor(host);
                self.offset_ns.store(now - host, Ordering::Relaxed);
                now
            }
            None => host + self.offset_ns.load(Ordering::Relaxed),
        }
    }
}

/// This host's clock.
fn host_clock() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as Nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Exchange;

    #[test]
    fn it_follows_another_monitor_once_that_is_measured() {
        let clock = FleetClock::of(|| 1_000_000_000_000);
        let other = Arc::new(Clock::new());
        clock.follow(other.clone());
        assert_eq!(clock.now(), 1_000_000_000_000);
        // The other monitor is 5 s ahead.
        other.update(Exchange {
            left: 999_000_000_000,
            came: 1_004_000_000_500,
            answered: 1_004_000_000_500,
            back: 999_000_001_000,
        });
        assert_eq!((clock.now() - 1_005_000_000_000).abs() / 1_000_000, 0);
    }
}
