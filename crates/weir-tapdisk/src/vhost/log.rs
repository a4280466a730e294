//! [`EventLog`]: log messages about a front end at a bounded rate. A front end that reconnects for
//! ever, or a guest that breaks its queue again and again, cannot fill the log.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Receives a message: a line without its end.
pub type LogLine = Arc<dyn Fn(&str) + Send + Sync>;

/// Maximum number of messages at once, and the time after which one more is allowed.
const BURST: u32 = 20;
const REFILL: Duration = Duration::from_secs(1);

/// Logs the events of one disk's socket.
pub struct EventLog {
    about: String,
    log_line: LogLine,
    allowance: Mutex<Allowance>,
}

struct Allowance {
    left: u32,
    since: Instant,
    withheld: u64,
}

impl std::fmt::Debug for EventLog {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("EventLog")
            .field("about", &self.about)
            .finish()
    }
}

impl EventLog {
    /// Messages start with `about`.
    pub fn new(about: String, log_line: LogLine) -> EventLog {
        let allowance = Allowance {
            left: BURST,
            since: Instant::now(),
            withheld: 0,
        };
        EventLog {
            about,
            log_line,
            allowance: Mutex::new(allowance),
        }
    }

    /// Logs a message, unless the rate is exceeded; then it is counted.
    pub fn report(&self, message: impl FnOnce() -> String) {
        let withheld = {
            let allowance = self.allowance.lock();
            // Numbers only; a panic leaves no partial update.
            let mut allowance = allowance.unwrap_or_else(PoisonError::into_inner);
            match allowance.spend(Instant::now()) {
                Some(withheld) => withheld,
                None => return,
            }
        };
        let about = &self.about;
        if withheld > 0 {
            (self.log_line)(&format!("{about}: {withheld} more messages were not shown"));
        }
        (self.log_line)(&format!("{about}: {}", message()));
    }
}

impl Allowance {
    /// The number of suppressed messages before this one; `None` if it is suppressed as well.
    fn spend(&mut self, now: Instant) -> Option<u64> {
        let refills = now.saturating_duration_since(self.since).as_nanos() / REFILL.as_nanos();
        let refills = u32::try_from(refills).unwrap_or(u32::MAX);
        self.since += REFILL * refills;
        self.left = self.left.saturating_add(refills).min(BURST);
        if self.left == 0 {
            self.withheld += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_records_are_counted_and_reported_later() {
        let start = Instant::now();
        let mut allowance = Allowance {
            left: BURST,
            since: start,
            withheld: 0,
        };
        let allowed = (0..100).filter(|_| allowance.spend(start).is_some());
        assert_eq!(allowed.count(), BURST as usize);
        let withheld = u64::from(100 - BURST);
        assert_eq!(allowance.spend(start + REFILL), Some(withheld));
        assert_eq!(allowance.spend(start + REFILL), None);
        let later = start + REFILL * 1000;
        let allowed = (0..100).filter(|_| allowance.spend(later).is_some());
        assert_eq!(allowed.count(), BURST as usize);
    }
}
