//! [`Lock`]: the exclusive use of a directory by one process.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::private;

/// Locks a directory until it is dropped or the process ends for any reason.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Locks a directory, with a file `lock` in it; `None` if another process has locked it.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn take(folder: &Path) -> io::Result<Option<Lock>> {
        let mut options = File::options();
        let options = options.create(true).truncate(false).write(true);
        Lock::of(private::open(options, &folder.join("lock"))?)
    }

    /// Locks an open file (flock(2)); `None` if another process has locked it.
    ///
    /// # Errors
    /// When the file system has no locks.
    pub fn of(file: File) -> io::Result<Option<Lock>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
