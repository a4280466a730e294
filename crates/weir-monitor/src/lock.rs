//! A state directory belongs to one monitor at a time.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use weir_runtime::failure::Failure;
use weir_runtime::lock::Lock;
use weir_runtime::private;

/// How long to wait for a monitor that is just ending.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often to look whether it has ended.
const NAP: Duration = Duration::from_millis(20);

/// Takes a state directory, which is made if need be.
///
/// # Errors
/// When it cannot be made, or another monitor has it.
pub fn hold(directory: &Path) -> Result<Lock, Failure> {
    let failed = |why: std::io::Error| {
        Failure::world(format_args!(
            "{}: {why}; --state names another directory for what must survive a restart",
            directory.display()
        ))
    };
    private::directory(directory).map_err(failed)?;
    let began = Instant::now();
    loop {
        match Lock::take(directory).map_err(failed)? {
            Some(lock) => return Ok(lock),
            None if began.elapsed() < PATIENCE => thread::sleep(NAP),
            None => {
                return Err(Failure::world(format_args!(
                    "{}: another monitor works there; end it, or give this one its own --state",
                    directory.display()
                )));
            }
        }
    }
}
