//! [`open`]: the bytes of a file, a pipe or standard input; and [`Cancel`], which ends the wait for
//! a pipe.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::source::is_standard_input;

/// Interval at which a read from a pipe checks [`Cancel`].
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Returns true when reads are to be cancelled.
type Condition = Box<dyn Fn() -> bool + Send>;

/// Cancels the wait for pipes. A pipe's writer may never write again, so a reader must be able to
/// end before that. Clones share one condition.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<Option<Condition>>>);

impl Cancel {
    /// From now on, reading from pipes fails once `condition` is true. It replaces the previous
    /// condition.
    pub fn when(&self, condition: impl Fn() -> bool + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(condition));
    }

    fn is_due(&self) -> bool {
        let condition = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        condition.as_ref().is_some_and(|is_due| is_due())
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_due()).finish()
    }
}

/// The error of a read that [`Cancel`] ended.
#[derive(Debug)]
struct Cancelled;

impl std::fmt::Display for Cancelled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("reading was cancelled")
    }
}

impl std::error::Error for Cancelled {}

/// True if a read failed because it was cancelled.
pub fn is_cancelled(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Cancelled>())
}

/// An opened input.
pub struct Opened {
    /// Its bytes in order.
    pub reader: Box<dyn Read + Send>,
    /// The file, if its bytes can be read by position as well.
    pub file: Option<File>,
    /// The pipe, if it is one.
    pub pipe: Option<File>,
    /// Its length in bytes; 0 if unknown.
    pub bytes: u64,
}

/// Opens a file, a pipe or standard input, without waiting for a pipe's writer.
///
/// # Errors
/// If it cannot be opened.
pub fn open(path: &Path, cancel: &Cancel) -> io::Result<Opened> {
    let mut file = match is_standard_input(path) {
        true => File::from(io::stdin().as_fd().try_clone_to_owned()?),
        // open(2) of a FIFO would block without the flag; files are not affected.
        false => OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?,
    };
    let kind = file.metadata()?.file_type();
    if delivers_once(kind) {
        let cancel = cancel.clone();
        return Ok(Opened {
            pipe: Some(file.try_clone()?),
            reader: Box::new(Pipe { file, cancel }),
            file: None,
            bytes: 0,
        });
    }
    // Part of standard input may have been read by another process.
    let at_start = kind.is_dir() || file.stream_position()? == 0;
    Ok(Opened {
        file: at_start.then(|| file.try_clone()).transpose()?,
        pipe: None,
        bytes: file.metadata()?.len(),
        reader: Box::new(file),
    })
}

/// True if the bytes at `path` can be read only once.
pub fn is_pipe(path: &Path) -> bool {
    let kind = std::fs::metadata(path).map(|m| m.file_type());
    is_standard_input(path) || kind.is_ok_and(delivers_once)
}

/// True if a pipe has no bytes for some time, and its writer has not closed it. A read would wait.
pub fn is_silent(pipe: &File, cancel: &Cancel) -> bool {
    let mut polled = [PollFd::new(pipe, PollFlags::IN)];
    !cancel.is_due()
        && matches!(
            poll(&mut polled, Some(&LOOK_EVERY)),
            Ok(0) | Err(Errno::INTR)
        )
}

fn delivers_once(kind: FileType) -> bool {
    kind.is_fifo() || kind.is_socket() || kind.is_char_device()
}

/// The reading end of a pipe.
struct Pipe {
    file: File,
    cancel: Cancel,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.cancel.is_due() {
                return Err(io::Error::other(Cancelled));
            }
            // A FIFO that has had no writer yet would read as ended: poll(2) waits for the first.
            match poll(
                &mut [PollFd::new(&self.file, PollFlags::IN)],
                Some(&LOOK_EVERY),
            ) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match self.file.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}
