//! [`Inbox`]: ticks on their way from the queries' answers to the screen.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::gather::Tick;

/// Ticks that wait, at most. A terminal that takes no more output misses old ones; nobody waits
/// for it.
const TICKS_MAX: usize = 16;

/// Ticks that the screen has not seen yet.
#[derive(Default)]
pub struct Inbox {
    ticks: Mutex<VecDeque<Tick>>,
    over: AtomicBool,
}

impl Inbox {
    /// Another tick.
    pub fn push(&self, tick: Tick) {
        let mut ticks = self.ticks.lock().expect("no panic while held");
        if ticks.len() == TICKS_MAX {
            ticks.pop_front();
        }
        ticks.push_back(tick);
    }

    /// The ticks since the last time.
    pub fn drain(&self) -> VecDeque<Tick> {
        std::mem::take(&mut *self.ticks.lock().expect("no panic while held"))
    }

    /// No more ticks will come.
    pub fn close(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// True when no more ticks will come.
    pub fn is_closed(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}
