//! Page-aligned memory for the data of requests, a bounded amount for each connection.
#![allow(unsafe_code)] // aligned memory comes from the allocator

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::slice;

/// The maximum alignment of O_DIRECT.
const ALIGN: usize = 4096;

/// Maximum amount of memory that is kept for later requests; the rest is freed.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Initialised memory that starts at a page.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a buffer owns its memory; there are no other pointers to it.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Zeroes.
    fn new(length: usize) -> Buffer {
        let layout = Layout::from_size_align(length, ALIGN).expect("lengths are bounded");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            std::alloc::handle_alloc_error(layout);
        };
        Buffer { start, layout }
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Its content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialised, of that length, and ours.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    /// Its content, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is initialised, of that length, and ours alone.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }

    /// The first `bytes` bytes for the kernel.
    pub fn iovec(&mut self, bytes: usize) -> libc::iovec {
        assert!(bytes <= self.len(), "a buffer holds its request");
        libc::iovec {
            iov_base: self.start.as_ptr().cast(),
            iov_len: bytes,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The length of a buffer for `bytes` bytes: powers of two, so that returned ones can be reused.
fn length_for(bytes: usize) -> usize {
    bytes.next_power_of_two().max(ALIGN)
}

/// A connection's buffers: a maximum number of bytes, independent of other connections.
#[derive(Debug)]
pub struct Pool {
    bytes_max: usize,
    lent_bytes: usize,
    kept: Vec<Buffer>,
    kept_bytes: usize,
}

impl Pool {
    /// A pool that lends at most `bytes_max`, but always one buffer.
    pub fn new(bytes_max: usize) -> Pool {
        Pool {
            bytes_max,
            lent_bytes: 0,
            kept: Vec::new(),
            kept_bytes: 0,
        }
    }

    /// Whether a buffer of `bytes` can be lent now.
    pub fn lends(&self, bytes: usize) -> bool {
        self.lent_bytes == 0 || self.lent_bytes + length_for(bytes) <= self.bytes_max
    }

    /// A buffer of at least `bytes`; `None` when others must be returned first.
    pub fn lend(&mut self, bytes: usize) -> Option<Buffer> {
        if !self.lends(bytes) {
            return None;
        }
        let length = length_for(bytes);
        self.lent_bytes += length;
        // Requests of one size follow each other: the last returned buffer usually fits.
        let at = self.kept.iter().rposition(|kept| kept.len() == length);
        let buffer = at.map(|at| self.kept.swap_remove(at));
        self.kept_bytes -= buffer.as_ref().map_or(0, Buffer::len);
        Some(buffer.unwrap_or_else(|| Buffer::new(length)))
    }

    /// Returns a buffer.
    pub fn give_back(&mut self, buffer: Buffer) {
        self.lent_bytes -= buffer.len();
        if self.kept_bytes + buffer.len() <= KEPT_BYTES_MAX {
            self.kept_bytes += buffer.len();
            self.kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_lends_up_to_its_limit_and_reuses_buffers() {
        let mut pool = Pool::new(16 << 10);
        let mut first = pool.lend(512).unwrap();
        assert_eq!(first.len(), 4096);
        assert_eq!(first.bytes().as_ptr() as usize % 4096, 0);
        first.bytes_mut()[0] = 1;
        assert_eq!(first.iovec(512).iov_len, 512);
        let second = pool.lend(5000).unwrap();
        assert_eq!(second.len(), 8192);
        assert!(pool.lend(8192).is_none());
        let at = first.bytes().as_ptr();
        pool.give_back(first);
        assert_eq!(
            pool.lend(4096).unwrap().bytes().as_ptr(),
            at,
            "the same again"
        );
        // That buffer was dropped, not returned: its share is still in use.
        assert!(pool.lend(8192).is_none());
        pool.give_back(second);
    }

    #[test]
    fn a_single_request_always_fits() {
        let mut pool = Pool::new(4096);
        let large = pool.lend(32 << 20).unwrap();
        assert!(pool.lend(1).is_none());
        pool.give_back(large);
        assert!(pool.lend(1).is_some());
        assert!(pool.kept.is_empty(), "so much is not kept");
    }
}
