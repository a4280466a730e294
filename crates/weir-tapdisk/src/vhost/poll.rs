//! [`Polling`]: whether a queue that has nothing to do looks at its ring for a while before it sleeps.
//!
//! To wake a thread costs the guest more than most requests take. To look in vain costs the host a
//! processor. So each period of looking is bounded, and its worth is measured: after a number of
//! periods it goes on only if at least every second one found work. If not, the queue sleeps at once for some
//! time, longer after each trial that was in vain, and then tries again. How long a thread slept says
//! less: that includes the very wake-up that is to be saved.

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
    /// Periods of this trial, and how many found work.
    periods: u32,
    found: u32,
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

    /// The period ended; whether there was work before it was over.
    pub fn end(&mut self, found: bool) {
        self.periods += 1;
        self.found += u32::from(found);
        if self.periods < TRIAL {
            return;
        }
        if self.found * 2 >= self.periods {
            self.rest = REST_MIN;
        } else {
            self.resting = self.rest;
            self.rest = (self.rest * 2).min(REST_MAX);
        }
        (self.periods, self.found) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(50);

    /// Of `periods` idle periods, how many are spent looking.
    fn looked(polling: &mut Polling, periods: u32, found: impl Fn(u32) -> bool) -> u32 {
        let mut looked = 0;
        for period in 0..periods {
            if polling.begin().is_some() {
                polling.end(found(period));
                looked += 1;
            }
        }
        looked
    }

    #[test]
    fn without_a_time_it_never_looks() {
        assert_eq!(looked(&mut Polling::new(Duration::ZERO), 1000, |_| true), 0);
    }

    #[test]
    fn it_goes_on_while_it_finds_work() {
        assert_eq!(looked(&mut Polling::new(LONGEST), 10_000, |_| true), 10_000);
        let every_second = |period| period % 2 == 0;
        let looked = looked(&mut Polling::new(LONGEST), 10_000, every_second);
        assert_eq!(looked, 10_000);
    }

    #[test]
    fn in_vain_it_looks_less_and_less_often_but_tries_again() {
        let mut polling = Polling::new(LONGEST);
        let in_vain = looked(&mut polling, 100_000, |_| false);
        assert!((TRIAL * 10..3000).contains(&in_vain), "{in_vain}");
        // When there is work again, one rest later it goes on for good.
        looked(&mut polling, REST_MAX + TRIAL, |_| true);
        assert_eq!(looked(&mut polling, 1000, |_| true), 1000);
    }
}
