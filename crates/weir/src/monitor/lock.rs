//! [`Lock`]: a state directory belongs to one monitor at a time.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::failure::Failure;

/// How long to wait for a monitor that is just ending.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often to look whether it has ended.
const NAP: Duration = Duration::from_millis(20);

/// Holds a state directory until it is dropped, or the process ends.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes a state directory, which is made if need be.
    ///
    /// # Errors
    /// When it cannot be made, or another monitor has it.
    pub fn take(directory: &Path) -> Result<Lock, Failure> {
        let failed = |why: std::io::Error| {
            Failure::world(format_args!(
                "{}: {why}; --state names another directory for what must survive a restart",
                directory.display()
            ))
        };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let path = directory.join("lock");
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true).open(path);
        let file = file.map_err(failed)?;
        let began = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(Errno::WOULDBLOCK) if began.elapsed() < PATIENCE => thread::sleep(NAP),
                Err(Errno::WOULDBLOCK) => {
                    return Err(Failure::world(format_args!(
                        "{}: another monitor works there; end it, or give this one its own --state",
                        directory.display()
                    )));
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
    }
}
