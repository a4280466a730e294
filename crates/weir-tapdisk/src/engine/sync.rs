//! [`SyncEngine`]: system calls of the I/O queue's own thread, one request after the other.
//!
//! For data in the page cache this is the fastest engine.
#![allow(unsafe_code)] // preadv(2) and pwritev2(2) take a guest's memory by its address.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::bounce::Pool;
use super::work::{Call, Next, Transfer, Work};
use crate::Outcome;
use crate::disk::{QueueFiles, ServedDisk};

/// An engine whose requests have ended when it returns.
#[derive(Debug)]
pub(crate) struct SyncEngine {
    files: QueueFiles,
    pool: Pool,
}

impl SyncEngine {
    pub(crate) fn new(files: QueueFiles) -> SyncEngine {
        let pool = Pool::default();
        SyncEngine { files, pool }
    }

    /// Executes a request.
    pub(crate) fn run(&mut self, work: &mut Work, disk: &ServedDisk) -> Outcome {
        loop {
            let call = work.call(disk, &mut self.pool);
            let call = call.expect("one request at a time finds a buffer");
            let result = perform(&self.files, call);
            if let Next::End(outcome) = work.ended(result, disk, &mut self.pool) {
                return outcome;
            }
        }
    }
}

/// Makes a call; returns its result, or a negative errno.
fn perform(files: &QueueFiles, call: Call) -> i32 {
    let file = files.image.as_raw_fd();
    let done = match call {
        Call::Read(Transfer {
            pieces,
            count,
            offset,
        }) => {
            // SAFETY: the pieces are those of a request that has not ended, so its memory is valid.
            unsafe { libc::preadv(file, pieces, count as i32, offset as i64) }
        }
        Call::Write { span, durable } => {
            let Transfer {
                pieces,
                count,
                offset,
            } = span;
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            // SAFETY: the pieces are those of a request that has not ended, so its memory is valid.
            unsafe { libc::pwritev2(file, pieces, count as i32, offset as i64, flags) }
        }
        Call::Sync => {
            // SAFETY: the descriptor is open.
            let done = unsafe { libc::fdatasync(files.flushed.as_raw_fd()) };
            done as isize
        }
        Call::Allocate {
            mode,
            offset,
            bytes,
        } => {
            // SAFETY: the descriptor is open.
            let done = unsafe { libc::fallocate(file, mode, offset as i64, bytes as i64) };
            done as isize
        }
        Call::Discard { offset, bytes } => return discard(file, offset, bytes),
    };
    match done {
        0.. => done as i32,
        _ => -last_errno(),
    }
}

/// linux/fs.h: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Deallocates space of a block device.
pub(super) fn discard(file: RawFd, offset: u64, bytes: u64) -> i32 {
    let range = [offset, bytes];
    // SAFETY: the descriptor is open, and the call reads two numbers of 64 bits.
    match unsafe { libc::ioctl(file, BLKDISCARD, range.as_ptr()) } {
        0 => 0,
        _ => -last_errno(),
    }
}

fn last_errno() -> i32 {
    let error = io::Error::last_os_error();
    error.raw_os_error().expect("the system gives a number")
}
