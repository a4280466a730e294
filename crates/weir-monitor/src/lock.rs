//! The lock of a state directory: one monitor at a time uses it.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use weir_runtime::failure::Failure;
use weir_runtime::lock::Lock;
use weir_runtime::private;

/// How long to wait for a monitor that is ending.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval at which the lock is tried.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Locks a state directory, which is created if it does not exist.
///
/// # Errors
/// If it cannot be created, or another monitor has locked it.
pub fn hold(directory: &Path) -> Result<Lock, Failure> {
    let failed = |why: std::io::Error| {
        Failure::world(format_args!(
            "{}: {why}; use --state DIR for another state directory",
            directory.display()
        ))
    };
    private::directory(directory).map_err(failed)?;
    let began = Instant::now();
    loop {
        match Lock::take(directory).map_err(failed)? {
            Some(lock) => return Ok(lock),
            None if began.elapsed() < LOCK_TIMEOUT => thread::sleep(RETRY_INTERVAL),
            None => {
                return Err(Failure::world(format_args!(
                    "{}: in use by another monitor; stop it, or use another --state directory",
                    directory.display()
                )));
            }
        }
    }
}
