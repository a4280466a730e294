//! [`Retimed`]: a tap whose messages are delivered at other times; the rest is that of the tap.

use std::time::Duration;

use crate::{EventCount, Tap, TapError, TapEvent};

/// When and how the messages of a tap are delivered.
pub trait Timing: Send {
    /// The next message, of `tap` or of its own; waits up to `timeout` for it.
    ///
    /// # Errors
    /// Those of `tap`.
    fn next(&mut self, tap: &mut dyn Tap, timeout: Duration) -> Result<TapEvent, TapError>;
}

/// A tap with a timing.
pub struct Retimed<T> {
    tap: Box<dyn Tap>,
    timing: T,
}

impl<T: Timing> Retimed<T> {
    /// Delivers the messages of `tap` by `timing`.
    pub fn new(tap: Box<dyn Tap>, timing: T) -> Retimed<T> {
        Retimed { tap, timing }
    }
}

impl<T: Timing> Tap for Retimed<T> {
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError> {
        self.timing.next(&mut *self.tap, timeout)
    }

    fn counts(&mut self) -> Vec<EventCount> {
        self.tap.counts()
    }

    fn progress(&self) -> Option<f64> {
        self.tap.progress()
    }

    fn describe(&self) -> Vec<String> {
        self.tap.describe()
    }

    fn messages(&self) -> Vec<String> {
        self.tap.messages()
    }

    fn responses_assumed(&self) -> bool {
        self.tap.responses_assumed()
    }
}
