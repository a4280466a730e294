//! [`FlinkTurn`]: one test at a time has a Flink, which takes a processor and a gigabyte of memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

static TURN: Mutex<()> = Mutex::new(());

/// The turn of a test, until it is dropped.
pub struct FlinkTurn {
    _guard: MutexGuard<'static, ()>,
}

impl FlinkTurn {
    /// Waits for the turn.
    pub fn wait() -> FlinkTurn {
        FlinkTurn {
            // The test that had it may have failed.
            _guard: TURN.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}
