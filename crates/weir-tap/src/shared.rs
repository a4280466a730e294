//! [`Shared`]: memory shared with kernel programs or another process, mapped into this process.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The values of a BPF array map, or the content of a memfd, as words of 8 bytes. Both sides change
/// them, so each word is atomic.
///
/// The mapping is removed on drop; the kernel frees the memory when its last descriptor and mapping
/// are closed, also if the process is killed.
#[derive(Debug)]
pub struct Shared {
    start: NonNull<AtomicU64>,
    words: usize,
    bytes: usize,
}

// SAFETY: this value alone owns the mapping, which does not move until drop and is accessed through
// atomics only.
unsafe impl Send for Shared {}

// SAFETY: as above; a shared reference gives access to atomics only.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps an array map of `values` values of `value_bytes` bytes each, or that size of a memfd,
    /// for reading and writing.
    ///
    /// # Errors
    /// The error of `mmap(2)`: memory or limits.
    pub fn map(fd: BorrowedFd<'_>, value_bytes: usize, values: usize) -> io::Result<Shared> {
        let bytes = value_bytes * values;
        assert!(bytes.is_multiple_of(8), "values are whole words");
        // SAFETY: a new mapping of an open descriptor; no existing memory is affected.
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
        // SAFETY: the mapping has `words` words, is page-aligned and zeroed by the kernel, and
        // lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

/// Some of the words.
#[derive(Clone, Debug)]
pub struct SharedPart {
    memory: Arc<Shared>,
    words: Range<usize>,
}

impl SharedPart {
    /// These words of `memory`.
    pub fn new(memory: Arc<Shared>, words: Range<usize>) -> SharedPart {
        SharedPart { memory, words }
    }

    /// Its words.
    pub fn words(&self) -> &[AtomicU64] {
        &self.memory.words()[self.words.clone()]
    }
}

impl From<Shared> for SharedPart {
    fn from(memory: Shared) -> SharedPart {
        let words = 0..memory.words;
        SharedPart::new(Arc::new(memory), words)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` returned; no borrow of it exists any more.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.bytes);
        }
    }
}
