//! [`Shedding`]: the time at which optional rows, which the kernel programs omit before a ring is
//! full, are delivered again.

use std::time::{Duration, Instant};

/// The first and the longest pause: each is twice as long as the previous one.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(64)];

/// After rows were delivered for this long, the next pause is the first again.
const CALM: Duration = Duration::from_secs(60);

/// Pauses in which optional rows are omitted.
#[derive(Debug, Default)]
pub(super) struct Shedding {
    since: Option<Instant>,
    ended: Option<Instant>,
    pause: Duration,
    pauses: i64,
}

impl Shedding {
    /// `sheds` is whether the programs omit rows; true if they should deliver them again.
    pub(super) fn look(&mut self, sheds: bool) -> bool {
        self.look_at(sheds, Instant::now())
    }

    fn look_at(&mut self, sheds: bool, now: Instant) -> bool {
        if !sheds {
            return false;
        }
        let Some(since) = self.since else {
            let calm = self.ended.is_none_or(|ended| now - ended >= CALM);
            self.pause = match calm {
                true => PAUSES[0],
                false => (self.pause * 2).min(PAUSES[1]),
            };
            self.since = Some(now);
            self.pauses += 1;
            return false;
        };
        let ends = now - since >= self.pause;
        if ends {
            (self.since, self.ended) = (None, Some(now));
        }
        ends
    }

    /// The number of pauses so far.
    pub(super) fn pauses(&self) -> i64 {
        self.pauses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_while_rows_come_too_fast() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut shedding = Shedding::default();
        let mut ends = |sheds, seconds| shedding.look_at(sheds, at(seconds));
        assert!(!ends(false, 0) && !ends(true, 1) && !ends(true, 2));
        assert!(ends(true, 3), "after two seconds");
        assert!(!ends(true, 4) && !ends(true, 7));
        assert!(ends(true, 8), "after four");
        assert!(!ends(false, 60) && !ends(true, 70) && !ends(true, 71));
        assert!(ends(true, 72), "after a calm minute it is two again");
        assert_eq!(shedding.pauses(), 3);
    }
}
