//! [`Polling`]: whether a queue that has nothing to do looks at its ring for a while before it sleeps.
//!
//! To wake a thread costs the guest more than most requests take. To look in vain costs the host a
//! processor. So each period of looking is bounded, and its worth is measured: after a number of
//! periods it goes on only if each find, with the looks in vain for it, took no more than the longest look. A
//! driver that has its next request soon passes, and so does a quick disk. Else the queue sleeps at once
//! for some time, longer after each trial that was in vain, and tries again. How long a thread slept
//! says less: that includes the very wake-up that is to be saved.

use std::time::Duration;

/// Periods after which the worth is judged.
const TRIAL: u32 = 64;
/// Idle periods without looking after the first trial in vain, and after many.
const REST_MIN: u32 = 64;
const REST_MAX: u32 = 8192;

/// How it went so far.
#[derive(Debug)]
pub struct Polling {
    longest: Duration,
    /// Periods of this trial, how many found work, and how long all took.
    periods: u32,
    found: u32,
    looked: Duration,
    /// Idle periods that are still to pass without looking, and how many there are next time.
    resting: u32,
    rest: u32,
}

impl Polling {
    /// Looks for at most `longest` at a time; never if that is zero.
    pub fn new(longest: Duration) -> Polling {
        Polling {
            longest,
            periods: 0,
            found: 0,
            looked: Duration::ZERO,
            resting: 0,
            rest: REST_MIN,
        }
    }

    /// How long to look now, at the beginning of an idle period. `None`: sleep at once.
    pub fn begin(&mut self) -> Option<Duration> {
        if self.longest.is_zero() {
            return None;
        }
        if self.resting > 0 {
            self.resting -= 1;
            return None;
        }
        Some(self.longest)
    }

    /// The period ended after so long; whether there was work.
    pub fn end(&mut self, found: bool, looked: Duration) {
        self.periods += 1;
        self.found += u32::from(found);
        self.looked += looked;
        if self.periods < TRIAL {
            return;
        }
        if self.looked <= self.longest * self.found {
            self.rest = REST_MIN;
        } else {
            self.resting = self.rest;
            self.rest = (self.rest * 2).min(REST_MAX);
        }
        (self.periods, self.found, self.looked) = (0, 0, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(50);

    /// Of `periods` idle periods, how many are spent looking. Work comes after so long, in each.
    fn looked(polling: &mut Polling, periods: u32, comes: impl Fn(u32) -> Duration) -> u32 {
        let mut looked = 0;
        for period in 0..periods {
            if let Some(longest) = polling.begin() {
                let comes = comes(period);
                polling.end(comes <= longest, comes.min(longest));
                looked += 1;
            }
        }
        looked
    }

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn without_a_time_it_never_looks() {
        let mut polling = Polling::new(Duration::ZERO);
        assert_eq!(looked(&mut polling, 1000, |_| Duration::ZERO), 0);
    }

    #[test]
    fn it_goes_on_while_finds_are_cheap() {
        let late = looked(&mut Polling::new(LONGEST), 10_000, |_| micros(45));
        assert_eq!(late, 10_000);
        // Two of three after 10 us, one never: 35 us for each find.
        let mostly = |period| micros(if period % 3 == 0 { 1000 } else { 10 });
        assert_eq!(looked(&mut Polling::new(LONGEST), 10_000, mostly), 10_000);
    }

    #[test]
    fn it_rests_where_finds_are_dear() {
        // Never, and every second time after 25 us: 75 us for each find.
        let never = |_| micros(1000);
        let seldom = |period| micros(if period % 2 == 0 { 1000 } else { 25 });
        for comes in [never, seldom] {
            let mut polling = Polling::new(LONGEST);
            let in_vain = looked(&mut polling, 100_000, comes);
            assert!((TRIAL * 10..3000).contains(&in_vain), "{in_vain}");
            // When there is work again, one rest later it goes on for good.
            looked(&mut polling, REST_MAX + TRIAL, |_| micros(5));
            assert_eq!(looked(&mut polling, 1000, |_| micros(5)), 1000);
        }
    }
}
