//! [`Pool`]: aligned buffers for `O_DIRECT`, for requests whose own memory is not aligned.
#![allow(unsafe_code)] // It provides aligned memory that the kernel reads and writes.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Size of a buffer in bytes. A longer request uses it in parts.
pub(crate) const BUFFER_BYTES: usize = 256 << 10;

/// Maximum number of buffers of an I/O queue; further requests wait for one.
const BUFFERS_MAX: usize = 16;

/// The maximum alignment of `O_DIRECT`: a page.
const LAYOUT: Layout = match Layout::from_size_align(BUFFER_BYTES, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// A buffer of [`BUFFER_BYTES`], taken from a [`Pool`].
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: NonNull<u8>,
}

impl Buffer {
    fn new() -> Buffer {
        // SAFETY: the layout is not of size zero.
        let memory = unsafe { alloc_zeroed(LAYOUT) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(LAYOUT));
        Buffer { memory }
    }

    /// Its first byte. All of it is initialised.
    pub(crate) fn start(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and is freed once.
        unsafe { dealloc(self.memory.as_ptr(), LAYOUT) }
    }
}

// SAFETY: a buffer is plain memory that it alone owns.
unsafe impl Send for Buffer {}

/// The buffers of an I/O queue. They are allocated on first use and kept.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Vec<Buffer>,
    made: usize,
    /// Initially zero and never written.
    zeroes: Option<Buffer>,
}

impl Pool {
    /// A buffer, unless all are in use.
    pub(crate) fn take(&mut self) -> Option<Buffer> {
        if self.free.is_empty() && self.made < BUFFERS_MAX {
            self.made += 1;
            return Some(Buffer::new());
        }
        self.free.pop()
    }

    /// Returns a buffer to the pool.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// [`BUFFER_BYTES`] of zeroes, read-only. They are valid as long as the pool.
    pub(crate) fn zeroes(&mut self) -> *const u8 {
        self.zeroes.get_or_insert_with(Buffer::new).start()
    }
}
