//! [`Pace`]: when to read the rings next: seldom on an idle host, often enough on a busy one, and
//! never because of a single event.

use std::time::{Duration, Instant};

/// An idle host is looked at this often: a row shows within 50 ms.
const IDLE: Duration = Duration::from_millis(40);

/// A busy one at least this often.
const BUSY: Duration = Duration::from_millis(20);

/// And at most this often.
const SHORTEST: Duration = Duration::from_millis(1);

/// The watermark: how full the fullest ring should be when it is read.
const FILL_WANTED: f64 = 1.0 / 8.0;

/// A ring this full may have lost records.
const FILL_FULL: f64 = 0.95;

/// The rhythm of reading.
#[derive(Debug)]
pub struct Pace {
    pause: Duration,
    started: Instant,
    late: bool,
}

impl Pace {
    /// Begins as on an idle host.
    pub fn new(now: Instant) -> Pace {
        Pace {
            pause: IDLE,
            started: now,
            late: false,
        }
    }

    /// When the rings are to be read next.
    pub fn due(&self) -> Instant {
        self.started + self.pause
    }

    /// Reading starts.
    pub fn started(&mut self, now: Instant) {
        let gap = now - self.started;
        self.late = gap > self.pause * 2 + IDLE;
        self.started = now;
    }

    /// Puts the next reading off until `pause` has passed since the last one, unless a ring fills
    /// that fast.
    pub fn wait_for(&mut self, pause: Duration) {
        if self.pause >= BUSY {
            self.pause = self.pause.max(pause);
        }
    }

    /// Whether the last reading began long after it was due, because whoever takes the rows was
    /// busy.
    pub fn was_late(&self) -> bool {
        self.late
    }

    /// Reading has found so many records, with the fullest ring `fill` full (0 to 1). True if
    /// records may have been lost.
    pub fn drained(&mut self, records: usize, held_back: bool, fill: f64) -> bool {
        self.pause = if records == 0 && !held_back {
            (self.pause * 2).min(IDLE)
        } else {
            let wanted = FILL_WANTED / fill.max(f64::MIN_POSITIVE);
            let pause = self.pause.as_secs_f64() * wanted.min(2.0);
            Duration::from_secs_f64(pause).clamp(SHORTEST, BUSY)
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
        let mut pace = Pace::new(now);
        assert_eq!(pace.due() - now, IDLE);
        assert!(!pace.drained(1000, false, 0.01));
        assert_eq!(pace.due() - now, BUSY);
        assert!(!pace.drained(10_000, false, 0.5));
        assert!(pace.due() - now < BUSY);
        assert!(pace.drained(10_000, false, 1.0));
        (0..8).for_each(|_| assert!(!pace.drained(0, false, 0.0)));
        assert_eq!(pace.due() - now, IDLE);
    }
}
