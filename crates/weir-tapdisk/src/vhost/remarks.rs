//! [`Remarks`]: what a front end's user may want to know, said at a bounded rate. A front end that
//! connects without end, or a guest that breaks its queue without end, fills nobody's log.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Who is told: a line without its end.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Remarks at once, and the time in which one more is allowed.
const BURST: u32 = 20;
const REFILL: Duration = Duration::from_secs(1);

/// Says what happens on one disk's socket.
pub struct Remarks {
    about: String,
    tell: Tell,
    allowance: Mutex<Allowance>,
}

struct Allowance {
    left: u32,
    since: Instant,
    withheld: u64,
}

impl std::fmt::Debug for Remarks {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Remarks")
            .field("about", &self.about)
            .finish()
    }
}

impl Remarks {
    /// Remarks begin with `about`.
    pub fn new(about: String, tell: Tell) -> Remarks {
        let allowance = Allowance {
            left: BURST,
            since: Instant::now(),
            withheld: 0,
        };
        Remarks {
            about,
            tell,
            allowance: Mutex::new(allowance),
        }
    }

    /// Says it, unless too much was said lately; then it is counted.
    pub fn say(&self, remark: impl FnOnce() -> String) {
        let withheld = {
            let allowance = self.allowance.lock();
            // Numbers only; nothing is half done.
            let mut allowance = allowance.unwrap_or_else(PoisonError::into_inner);
            match allowance.spend(Instant::now()) {
                Some(withheld) => withheld,
                None => return,
            }
        };
        let about = &self.about;
        if withheld > 0 {
            (self.tell)(&format!("{about}: {withheld} more remarks were not shown"));
        }
        (self.tell)(&format!("{about}: {}", remark()));
    }
}

impl Allowance {
    /// How many remarks were withheld before this one; `None` if it is withheld as well.
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
    fn what_comes_too_fast_is_counted_and_told_later() {
        let start = Instant::now();
        let mut allowance = Allowance {
            left: BURST,
            since: start,
            withheld: 0,
        };
        let said = (0..100).filter(|_| allowance.spend(start).is_some());
        assert_eq!(said.count(), BURST as usize);
        let withheld = u64::from(100 - BURST);
        assert_eq!(allowance.spend(start + REFILL), Some(withheld));
        assert_eq!(allowance.spend(start + REFILL), None);
        let later = start + REFILL * 1000;
        let said = (0..100).filter(|_| allowance.spend(later).is_some());
        assert_eq!(said.count(), BURST as usize);
    }
}
