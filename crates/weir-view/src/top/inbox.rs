//! [`Inbox`]: the queue of ticks from the queries to the screen.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::gather::Tick;

/// Maximum number of queued ticks. If the terminal is too slow, old ones are dropped; no query
/// waits for it.
const TICKS_MAX: usize = 16;

/// Ticks that were not displayed yet.
#[derive(Default)]
pub struct Inbox {
    ticks: Mutex<VecDeque<Tick>>,
    over: AtomicBool,
}

impl Inbox {
    /// Adds a tick.
    pub fn push(&self, tick: Tick) {
        let mut ticks = self.ticks.lock().expect("no panic while held");
        if ticks.len() == TICKS_MAX {
            ticks.pop_front();
        }
        ticks.push_back(tick);
    }

    /// The ticks since the previous call.
    pub fn drain(&self) -> VecDeque<Tick> {
        std::mem::take(&mut *self.ticks.lock().expect("no panic while held"))
    }

    /// Marks the end: no more ticks are added.
    pub fn close(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// True after the end.
    pub fn is_closed(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}
