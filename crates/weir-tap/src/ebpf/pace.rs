//! [`Pace`]: schedules the reading of the rings: rarely on an idle host, often enough on a busy
//! one, and never because of a single event.

use std::thread;
use std::time::{Duration, Instant};

/// Minimum interval on a busy host.
const SHORTEST: Duration = Duration::from_millis(1);

/// Intended fill level of the fullest ring when it is read.
const FILL_WANTED: f64 = 1.0 / 8.0;

/// A ring with this fill level may have lost records.
const FILL_FULL: f64 = 0.95;

/// The schedule of reading.
#[derive(Debug)]
pub struct Pace {
    /// Maximum interval on a busy host.
    busy: Duration,
    /// Maximum interval on an idle host.
    idle: Duration,
    pause: Duration,
    started: Instant,
    late: bool,
}

impl Pace {
    /// Starts as on an idle host, whose interval is twice that of a busy one, which is
    /// `poll_interval`.
    pub fn new(now: Instant, poll_interval: Duration) -> Pace {
        let busy = poll_interval.max(SHORTEST);
        Pace {
            busy,
            idle: busy * 2,
            pause: busy * 2,
            started: now,
            late: false,
        }
    }

    /// The time of the next reading.
    pub fn due(&self) -> Instant {
        self.started + self.pause
    }

    /// Registers the start of a reading.
    pub fn started(&mut self, now: Instant) {
        let gap = now - self.started;
        self.late = gap > self.pause * 2 + self.idle;
        self.started = now;
    }

    /// Sleeps until the next reading is due, or until `until` if that is earlier. True if a reading
    /// starts.
    pub fn starts_by(&mut self, until: Instant) -> bool {
        let (now, due) = (Instant::now(), self.due());
        if due > now {
            thread::sleep(due.min(until).saturating_duration_since(now));
        }
        let now = Instant::now();
        let starts = now >= due;
        if starts {
            self.started(now);
        }
        starts
    }

    /// Postpones the next reading until `pause` has passed since the last one, unless a ring fills
    /// that fast.
    pub fn wait_for(&mut self, pause: Duration) {
        if self.pause >= self.busy {
            self.pause = self.pause.max(pause);
        }
    }

    /// True if the last reading started long after it was due, because the consumer of the rows was
    /// busy.
    pub fn was_late(&self) -> bool {
        self.late
    }

    /// Registers the result of a reading: the number of records, and the fill level of the fullest
    /// ring (0 to 1). True if records may have been lost.
    pub fn drained(&mut self, records: usize, held_back: bool, fill: f64) -> bool {
        self.pause = if records == 0 && !held_back {
            (self.pause * 2).min(self.idle)
        } else {
            let wanted = FILL_WANTED / fill.max(f64::MIN_POSITIVE);
            let pause = self.pause.as_secs_f64() * wanted.min(2.0);
            Duration::from_secs_f64(pause).clamp(SHORTEST, self.busy)
        };
        fill > FILL_FULL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filling_ring_is_read_sooner_and_an_idle_one_less_often() {
        let now = Instant::now();
        let (busy, idle) = (Duration::from_millis(20), Duration::from_millis(40));
        let mut pace = Pace::new(now, busy);
        assert_eq!(pace.due() - now, idle);
        assert!(!pace.drained(1000, false, 0.01));
        assert_eq!(pace.due() - now, busy);
        assert!(!pace.drained(10_000, false, 0.5));
        assert!(pace.due() - now < busy);
        assert!(pace.drained(10_000, false, 1.0));
        (0..8).for_each(|_| assert!(!pace.drained(0, false, 0.0)));
        assert_eq!(pace.due() - now, idle);
    }
}
