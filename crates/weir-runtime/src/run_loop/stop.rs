//! [`Stop`]: when the taps are to end, and the signals that say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use signal_hook::consts::{SIGINT, SIGTERM};
use weir_model::Nanos;

/// How often somebody who waits looks whether it is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// When the taps are to end. All who hold it see the same.
#[derive(Clone)]
pub struct Stop {
    abandoned: Arc<AtomicBool>,
    until_ns: Arc<AtomicI64>,
    signal: Arc<AtomicUsize>,
}

impl Default for Stop {
    fn default() -> Stop {
        Stop {
            abandoned: Arc::default(),
            until_ns: Arc::new(AtomicI64::new(Nanos::MAX)),
            signal: Arc::default(),
        }
    }
}

impl Stop {
    /// Not yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Not yet; and from now on SIGINT and SIGTERM are heard. A second one ends the process at
    /// once.
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub fn on_signals() -> std::io::Result<Stop> {
        let stop = Stop::new();
        for number in [SIGINT, SIGTERM] {
            let again = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register_conditional_shutdown(number, 128 + number, again.clone())?;
            signal_hook::flag::register(number, again)?;
            signal_hook::flag::register_usize(number, stop.signal.clone(), number as usize)?;
        }
        Ok(stop)
    }

    /// Not yet, for taps that come after others; signals are the same.
    pub fn anew(&self) -> Stop {
        Stop {
            signal: self.signal.clone(),
            ..Stop::new()
        }
    }

    /// The signal that was caught, if any.
    pub fn signal(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number as i32),
        }
    }

    /// Nothing more is wanted: taps end at the next occasion.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// True once nothing more is wanted.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Waits so long. False if a signal came or nothing more is wanted, before that or at its end.
    pub fn wait(&self, span: Duration) -> bool {
        let until = Instant::now() + span;
        loop {
            if self.signal().is_some() || self.is_abandoned() {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }

    /// What happens after `at` is no longer wanted of a live tap; what happened before and is still
    /// on its way is.
    pub fn live_until(&self, at: Nanos) {
        self.until_ns.fetch_min(at, Ordering::Relaxed);
    }

    /// The last instant wanted of a live tap.
    pub fn live_end(&self) -> Nanos {
        self.until_ns.load(Ordering::Relaxed)
    }
}

/// The wall clock, in nanoseconds since the Unix epoch.
pub fn wall_clock() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| Nanos::try_from(d.as_nanos()).unwrap_or(Nanos::MAX))
}
