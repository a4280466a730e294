//! [`wait_until`]: waits for what another process or thread does.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time after which a test gives up. Never a measure of speed.
pub const TIMEOUT: Duration = Duration::from_secs(180);

/// The interval of checks.
const POLL: Duration = Duration::from_millis(10);

/// Waits until `done`.
///
/// # Panics
/// When [`TIMEOUT`] has passed; the message has `what` is awaited.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(
            begin.elapsed() < TIMEOUT,
            "waited without success until {what}"
        );
        sleep(POLL);
    }
}
