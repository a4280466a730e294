//! [`Shared`]: memory that kernel programs or another process write and we read, or the other way
//! round, mapped into this process.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// The values of a BPF array map, or what a memfd holds, as words of 8 bytes. Both sides change them,
/// so each word is atomic.
///
/// It is unmapped when dropped; the kernel frees the memory when its last descriptor and mapping are
/// gone, however the process ends.
#[derive(Debug)]
pub struct Shared {
    start: NonNull<AtomicU64>,
    words: usize,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, stays where it is until drop and is reached
// through atomics only.
unsafe impl Send for Shared {}

// SAFETY: as above; through a shared reference there are only atomics to be had.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps an array map of `values` values of `value_bytes` bytes each, or so much of a memfd, for
    /// reading and writing.
    ///
    /// # Errors
    /// What `mmap(2)` says: memory or limits.
    pub fn map(fd: BorrowedFd<'_>, value_bytes: usize, values: usize) -> io::Result<Shared> {
        let bytes = value_bytes * values;
        assert!(bytes.is_multiple_of(8), "values are whole words");
        // SAFETY: a new mapping of a descriptor that we hold; no memory of ours is involved.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("a mapping is not at address 0");
        Ok(Shared {
            start,
            words: bytes / 8,
            bytes,
        })
    }

    /// All words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `words` words, page-aligned, zeroed by the kernel, and lives as
        // long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` got; nobody borrows it any more.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.bytes);
        }
    }
}
