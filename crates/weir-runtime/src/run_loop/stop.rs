//! [`Stop`]: the end of the taps, and the signals that request it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use signal_hook::consts::{SIGINT, SIGTERM};
use weir_model::Nanos;

/// The interval at which a waiting thread checks whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// When the taps are to end. Clones share the state.
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
    /// A stop that was not requested.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// A stop that was not requested; SIGINT and SIGTERM request it from now on. A second signal
    /// ends the process immediately.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
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

    /// A new stop for the following taps, with the same signals.
    pub fn restarted(&self) -> Stop {
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

    /// Requests the end: taps end as soon as possible.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// True once the end was requested.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Waits for `span`. False if a signal was received or the end was requested, before or when it
    /// has passed.
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

    /// Ends live taps at `at`: later events are discarded, earlier ones are still delivered.
    pub fn live_until(&self, at: Nanos) {
        self.until_ns.fetch_min(at, Ordering::Relaxed);
    }

    /// The last instant of live taps.
    pub fn live_end(&self) -> Nanos {
        self.until_ns.load(Ordering::Relaxed)
    }
}

/// The wall clock, in nanoseconds since the Unix epoch.
pub fn wall_clock() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| Nanos::try_from(d.as_nanos()).unwrap_or(Nanos::MAX))
}
