//! [`Polling`]: whether an idle queue or connection polls for requests before its thread sleeps.
//!
//! Waking a thread costs the client more than most requests take. Polling without success costs the
//! host a processor. So each polling period is bounded, and its benefit is measured: after a number
//! of periods polling continues only if each success, including the unsuccessful periods before it,
//! took no more than the longest period. A client that soon has its next request meets this, and so
//! does a fast disk. Otherwise the thread sleeps at once for some time, longer after each
//! unsuccessful trial, and tries again. The time that a thread slept is a worse measure: it
//! includes the wake-up that polling avoids.
//!
//! A period is longer than the longest one when other threads used the processor meanwhile. A trial
//! therefore ends after a total time too: a thread that sleeps is scheduled sooner than one that
//! polls.

use std::time::Duration;

/// The longest period, unless another one is configured.
pub const POLL_DEFAULT: Duration = Duration::from_micros(50);

/// Periods after which the benefit is evaluated.
const TRIAL_PERIODS: u32 = 64;
/// Idle periods without polling after the first unsuccessful trial, and after many.
const PAUSE_MIN: u32 = 64;
const PAUSE_MAX: u32 = 8192;

/// The state of the measurement.
#[derive(Debug)]
pub struct Polling {
    longest: Duration,
    /// Periods of this trial, how many found work, and their total time.
    periods: u32,
    found: u32,
    polled: Duration,
    /// Idle periods without polling that remain, and their number next time.
    paused: u32,
    pause: u32,
}

impl Polling {
    /// Polls for at most `longest` at a time; never if that is zero.
    pub fn new(longest: Duration) -> Polling {
        Polling {
            longest,
            periods: 0,
            found: 0,
            polled: Duration::ZERO,
            paused: 0,
            pause: PAUSE_MIN,
        }
    }

    /// How long to poll now, at the start of an idle period. `None`: sleep at once.
    pub fn begin(&mut self) -> Option<Duration> {
        if self.longest.is_zero() {
            return None;
        }
        if self.paused > 0 {
            self.paused -= 1;
            return None;
        }
        Some(self.longest)
    }

    /// Ends a period after `polled`; `found`: whether there was work.
    pub fn end(&mut self, found: bool, polled: Duration) {
        self.periods += 1;
        self.found += u32::from(found);
        self.polled += polled;
        if self.periods < TRIAL_PERIODS && self.polled < self.longest * TRIAL_PERIODS {
            return;
        }
        if self.polled <= self.longest * self.found {
            self.pause = PAUSE_MIN;
        } else {
            self.paused = self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        (self.periods, self.found, self.polled) = (0, 0, Duration::ZERO);
    }

    /// The periods of this trial, and how many found work.
    #[cfg(test)]
    pub fn trial(&self) -> (u32, u32) {
        (self.periods, self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(50);

    /// The number of periods with polling out of `periods` idle ones. `comes` is when work arrives
    /// in each.
    fn polled(polling: &mut Polling, periods: u32, comes: impl Fn(u32) -> Duration) -> u32 {
        let mut polled = 0;
        for period in 0..periods {
            if let Some(longest) = polling.begin() {
                let comes = comes(period);
                polling.end(comes <= longest, comes.min(longest));
                polled += 1;
            }
        }
        polled
    }

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn without_a_polling_time_it_never_polls() {
        let mut polling = Polling::new(Duration::ZERO);
        assert_eq!(polled(&mut polling, 1000, |_| Duration::ZERO), 0);
    }

    #[test]
    fn polling_continues_while_it_finds_work() {
        let late = polled(&mut Polling::new(LONGEST), 10_000, |_| micros(45));
        assert_eq!(late, 10_000);
        // Two of three after 10 us, one never: 35 us for each success.
        let mostly = |period| micros(if period % 3 == 0 { 1000 } else { 10 });
        assert_eq!(polled(&mut Polling::new(LONGEST), 10_000, mostly), 10_000);
    }

    #[test]
    fn a_thread_without_a_processor_pauses_soon() {
        let mut polling = Polling::new(LONGEST);
        polling.end(true, LONGEST * (TRIAL_PERIODS - 1));
        assert!(polling.begin().is_some());
        // It found its work, but another thread used the processor for a time slice.
        polling.end(true, LONGEST);
        assert!(polling.begin().is_none());
    }

    #[test]
    fn polling_pauses_when_it_is_expensive() {
        // Never, and every second time after 25 us: 75 us for each success.
        let never = |_| micros(1000);
        let seldom = |period| micros(if period % 2 == 0 { 1000 } else { 25 });
        for comes in [never, seldom] {
            let mut polling = Polling::new(LONGEST);
            let in_vain = polled(&mut polling, 100_000, comes);
            assert!((TRIAL_PERIODS * 10..3000).contains(&in_vain), "{in_vain}");
            // When there is work again, polling resumes after one pause.
            polled(&mut polling, PAUSE_MAX + TRIAL_PERIODS, |_| micros(5));
            assert_eq!(polled(&mut polling, 1000, |_| micros(5)), 1000);
        }
    }
}
