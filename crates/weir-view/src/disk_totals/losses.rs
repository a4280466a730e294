//! [`Losses`]: reports on standard error when counters or busy times are lower bounds.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_model::Nanos;
use weir_sink::SinkError;
use weir_tap::EventCount;

use super::{LedgerReader, Totals};
use weir_runtime::output;
use weir_runtime::run_loop::missed;

/// Minimum interval between two checks and reports of losses.
const LOOKED_FOR_EVERY: Duration = Duration::from_secs(2);

/// Smaller shares are not reported: they do not change the printed digits.
const SHARE: f64 = 0.001;

/// A reader of totals, and their losses.
pub struct Losses {
    reader: Box<dyn LedgerReader>,
    /// The current counts of the taps.
    counts: Arc<Mutex<Vec<EventCount>>>,
    last: Seen,
    looked: Instant,
}

/// The relevant counts of the taps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    received: i64,
    missed: i64,
    /// The number of times that single requests were left out.
    paused: i64,
}

impl Losses {
    /// Reports the losses in the input of `reader`.
    pub fn new(reader: Box<dyn LedgerReader>, counts: Arc<Mutex<Vec<EventCount>>>) -> Losses {
        Losses {
            reader,
            counts,
            last: Seen::default(),
            looked: Instant::now(),
        }
    }

    fn report(&mut self) {
        self.looked = Instant::now();
        let now = Seen::of(&self.counts.lock().expect("no panic while held"));
        if let Some(text) = now.since(&self.last) {
            output::notice(format_args!("weir: {text}"));
        }
        self.last = now;
    }
}

impl Seen {
    fn of(counts: &[EventCount]) -> Seen {
        let sum = |name: &str| {
            let named = counts.iter().filter(|c| c.counter == name);
            named.map(|c| c.total).sum()
        };
        Seen {
            received: sum("seen"),
            missed: missed(counts),
            paused: sum("rows_paused"),
        }
    }

    /// The report for the time since `last`.
    fn since(&self, last: &Seen) -> Option<String> {
        let missed = self.missed - last.missed;
        let all = self.received - last.received + missed;
        if missed > 0 && missed as f64 > SHARE * all as f64 {
            return Some(format!(
                "{missed} events were missed: the counters are lower bounds"
            ));
        }
        (self.paused > last.paused).then(|| {
            "requests arrive too fast and some are not transferred: busy times (%util) are lower \
             bounds; all other counters are complete"
                .to_owned()
        })
    }
}

impl LedgerReader for Losses {
    fn whole(&mut self, totals: &mut Totals, at: Nanos) -> Result<(), SinkError> {
        if self.looked.elapsed() >= LOOKED_FOR_EVERY {
            self.report();
        }
        self.reader.whole(totals, at)
    }

    fn finish(&mut self, totals: &mut Totals, at: Option<Nanos>) -> Result<(), SinkError> {
        self.report();
        self.reader.finish(totals, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_lower_bound_is_reported() {
        let seen = |received, missed, paused| Seen {
            received,
            missed,
            paused,
        };
        let start = seen(0, 0, 0);
        assert_eq!(seen(1_000, 0, 0).since(&start), None);
        assert_eq!(seen(99_999, 1, 0).since(&start), None, "one in 100,000");
        let lossy = seen(90, 10, 1).since(&start).unwrap();
        assert!(lossy.contains("10 events were missed"), "{lossy}");
        let paused = seen(1_000, 0, 1).since(&start).unwrap();
        assert!(paused.contains("busy times (%util)"), "{paused}");
        assert_eq!(seen(1_100, 10, 1).since(&seen(100, 10, 1)), None);
    }
}
