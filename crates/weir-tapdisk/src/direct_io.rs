//! [`DirectIo`]: direct reads, writes and flushes of a block device through io_uring(7), with many
//! in flight. The data does not matter: all reads share one buffer, and all writes another one.
#![allow(unsafe_code)] // The kernel receives memory by its address.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use weir_model::{Op, SECTOR_BYTES};

/// The largest number of requests in flight.
pub const DEPTH_MAX: u32 = 4096;

/// The first bytes of each written sector, by which written data is recognised later.
pub const SECTOR_TAG: &[u8; 16] = b"weir replay data";

/// The alignment of the buffers: that of the largest logical block.
const ALIGNMENT: usize = 4096;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectRequest {
    /// A read, a write or a flush.
    pub op: Op,
    /// Its start on the device, in bytes.
    pub offset_bytes: u64,
    /// Its length, at most that of the buffers; 0 for a flush.
    pub bytes: u32,
    /// What its completion is reported by.
    pub token: u64,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectCompletion {
    /// That of the request.
    pub token: u64,
    /// The errno of a request that failed.
    pub errno: Option<i32>,
}

/// See the module's documentation.
pub struct DirectIo {
    ring: IoUring,
    file: File,
    read: Buffer,
    written: Buffer,
    /// The length of each request in flight is not stored: it is in the upper half of `user_data`.
    in_flight: u32,
    depth: u32,
}

impl DirectIo {
    /// For a device that was opened with `O_DIRECT`: at most `depth` requests of at most
    /// `bytes_max` each are in flight.
    ///
    /// # Errors
    /// When the kernel has no io_uring, or does not permit it.
    pub fn new(file: File, depth: u32, bytes_max: u32) -> io::Result<DirectIo> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let ring = IoUring::new(depth.next_power_of_two())?;
        if !ring.params().is_feature_ext_arg() {
            let reason = "waiting with a limit needs Linux 5.11";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        let mut written = Buffer::new(bytes_max);
        written.fill_sectors();
        Ok(DirectIo {
            ring,
            file,
            read: Buffer::new(bytes_max),
            written,
            in_flight: 0,
            depth,
        })
    }

    /// Whether no further request can be in flight.
    pub fn is_full(&self) -> bool {
        self.in_flight >= self.depth
    }

    /// The number of requests that were queued and have not ended.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Queues a request for [`DirectIo::submit`].
    ///
    /// # Panics
    /// If the ring is full, the request is longer than the buffers, its operation is another one,
    /// or its token has more than 32 bits.
    pub fn push(&mut self, request: &DirectRequest) {
        assert!(!self.is_full(), "the caller checks that");
        assert!(request.bytes as usize <= self.read.layout.size(), "length");
        let token = u32::try_from(request.token).expect("tokens have 32 bits");
        let file = Fd(self.file.as_raw_fd());
        let entry = match request.op {
            Op::Read => opcode::Read::new(file, self.read.start, request.bytes)
                .offset(request.offset_bytes)
                .build(),
            Op::Write => opcode::Write::new(file, self.written.start, request.bytes)
                .offset(request.offset_bytes)
                .build(),
            Op::Flush => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            Op::Discard | Op::WriteZeroes => panic!("neither discards nor writes zeroes"),
        };
        let user_data = u64::from(request.bytes) << 32 | u64::from(token);
        let entry = entry.user_data(user_data);
        // SAFETY: the buffers live as long as the ring, which is dropped when no call is in flight;
        // they are as long as the request, and no Rust code reads or writes them meanwhile.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has as many entries as requests");
        self.in_flight += 1;
    }

    /// Submits what is queued. The kernel may have no memory now: the rest is submitted by the next
    /// call.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn submit(&mut self) -> io::Result<()> {
        while !self.ring.submission().is_empty() {
            match self.ring.submit().map_err(tolerated) {
                Ok(_) => {}
                Err(None) => return Ok(()),
                Err(Some(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends the requests that have ended. It does not wait.
    pub fn reap(&mut self, done: &mut Vec<DirectCompletion>) {
        let before = done.len();
        done.extend(self.ring.completion().map(|entry| {
            let (user_data, result) = (entry.user_data(), entry.result());
            let (bytes, token) = (user_data >> 32, user_data & u64::from(u32::MAX));
            let is_whole = i64::from(result) == bytes as i64;
            let errno = match result {
                failed if failed < 0 => Some(-failed),
                _ if is_whole => None,
                // Only a part was transferred: the device is shorter than its size.
                _ => Some(libc::EIO),
            };
            DirectCompletion { token, errno }
        }));
        self.in_flight -= u32::try_from(done.len() - before).expect("at most the depth");
    }

    /// Submits what is queued, and waits until a request has ended, for at most this time.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        if self.in_flight == 0 {
            std::thread::sleep(at_most);
            return Ok(());
        }
        let limit = Timespec::from(at_most);
        let arguments = SubmitArgs::new().timespec(&limit);
        let waited = self.ring.submitter().submit_with_args(1, &arguments);
        match waited.map_err(tolerated) {
            Err(Some(error)) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for DirectIo {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.in_flight > 0 {
            if let Err(error) = self.wait(Duration::from_secs(1)) {
                // Memory that the kernel may write must not be freed.
                tracing::error!(reason = %error, "io_uring: cannot wait for requests in flight, aborting");
                std::process::abort();
            }
            self.reap(&mut done);
        }
    }
}

/// `None` for an error after which the call is repeated.
fn tolerated(error: io::Error) -> Option<io::Error> {
    let repeated = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ETIME];
    let is_repeated = error.raw_os_error().is_some_and(|e| repeated.contains(&e));
    (!is_repeated).then_some(error)
}

/// Memory for direct I/O.
struct Buffer {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the memory belongs to the buffer alone, and any thread may free it.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new(bytes: u32) -> Buffer {
        let bytes = (bytes as usize).next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let layout = Layout::from_size_align(bytes, ALIGNMENT).expect("it is a power of two");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Buffer { start, layout }
    }

    /// Fills each sector with the tag and with bytes that do not compress.
    fn fill_sectors(&mut self) {
        // SAFETY: the memory is initialised, of this length, and no call is in flight yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) };
        // Marsaglia's xorshift64, from any state but 0.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for sector in bytes.chunks_exact_mut(SECTOR_BYTES as usize) {
            let (tag, rest) = sector.split_at_mut(SECTOR_TAG.len());
            tag.copy_from_slice(SECTOR_TAG);
            for word in rest.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_ne_bytes());
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Waits for all requests; their tokens with their errors, by token.
    fn all(io: &mut DirectIo) -> Vec<(u64, Option<i32>)> {
        let mut done = Vec::new();
        io.submit().unwrap();
        while io.in_flight() > 0 {
            io.wait(Duration::from_millis(100)).unwrap();
            io.reap(&mut done);
        }
        let mut done: Vec<_> = done.into_iter().map(|c| (c.token, c.errno)).collect();
        done.sort_unstable();
        done
    }

    #[test]
    fn requests_end_with_their_tokens_and_written_sectors_have_the_tag() {
        if crate::engine::try_uring().is_err() {
            return weir_testing::skipped("direct_io", "this kernel has no io_uring");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let mut options = File::options();
        let file = options.create_new(true).read(true).write(true).open(&path);
        let file = file.unwrap();
        file.set_len(1 << 20).unwrap();
        let mut io = DirectIo::new(file, 8, 8192).unwrap();
        let request = |op, offset_bytes, bytes, token| DirectRequest {
            op,
            offset_bytes,
            bytes,
            token,
        };
        io.push(&request(Op::Write, 4096, 8192, 1));
        io.push(&request(Op::Flush, 0, 0, 2));
        io.push(&request(Op::Read, 0, 4096, 3));
        // Beyond the end.
        io.push(&request(Op::Read, 1 << 20, 4096, 4));
        let expected = [(1, None), (2, None), (3, None), (4, Some(libc::EIO))];
        assert_eq!(all(&mut io), expected);
        let mut bytes = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
        let tagged = bytes
            .chunks(512)
            .map(|sector| sector.starts_with(SECTOR_TAG));
        let tagged: Vec<usize> = tagged.enumerate().filter(|t| t.1).map(|t| t.0).collect();
        assert_eq!(tagged, (8..24).collect::<Vec<_>>());
        for token in 0..8 {
            io.push(&request(Op::Read, token * 4096, 4096, token));
        }
        assert!(io.is_full());
        assert_eq!(all(&mut io).len(), 8);
    }
}
